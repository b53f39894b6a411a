"""Speculative decoding: what the drafter proposed, how the model judged it, and what came of it."""

from __future__ import annotations

from engine.speculation import LikelyTokens
from engine.trace import events as ev
from sim.state import State
from sim.timeline import StepView, Timeline
from viz.figures.chart import bar, chart
from viz.figures.forward_pass import visible
from viz.figures.html import Html, el
from viz.figures.parts import Selection, chip, count, empty, empty_but, label, panel
from viz.theme import request_class

#: Requests drawn in one step.
_REQUESTS = 8


def speculation(timeline: Timeline, view: StepView, selection: Selection) -> Html:
    """Draw the verdict on every draft of a step, and the acceptance of the whole run."""
    verdicts = [event for event in view.events if isinstance(event, ev.SpecVerdict)]
    verdicts.sort(key=lambda verdict: verdict.request != selection.request)
    probs = {event.request: event for event in view.events if isinstance(event, ev.SpecProbs)}
    drawn = [_verdict(verdict, probs.get(verdict.request), view.after) for verdict in verdicts[:_REQUESTS]]
    if len(verdicts) > _REQUESTS:
        drawn.append(el("p", "more", f"… {count(len(verdicts) - _REQUESTS, 'more request')}"))
    return panel(
        "speculation",
        "Speculative decoding",
        "a cheap drafter guesses the next tokens; the model judges all of them in one step",
        *(drawn or [_why_empty(timeline)]),
        _acceptance(timeline),
    )


def _why_empty(timeline: Timeline) -> Html:
    first = next((facts.step for facts in timeline.series if any(facts.drafted)), None)
    if first is None:
        return empty_but(
            "No draft was judged in this trace: each step gives every request at most one new token.", "spec-draft"
        )
    return empty(f"No draft was judged in this step; the first of the trace are judged in step {first}.")


def _verdict(verdict: ev.SpecVerdict, probs: ev.SpecProbs | None, state: State) -> Html:
    accepted = verdict.num_accepted
    positions = [_position(verdict, place, probs, state) for place in range(len(verdict.draft_token_ids))]
    outcome = _outcome(verdict, state)
    rejected = accepted < len(verdict.draft_token_ids)
    likely = probs.likely[accepted] if probs and rejected and accepted < len(probs.likely) else None
    words = f"{accepted} of {count(len(verdict.draft_token_ids), 'draft')} accepted"
    return el(
        "div",
        f"verdict-of {request_class(verdict.request)}",
        el("div", "heading", chip(verdict.request), el("span", "", words)),
        el("div", "positions", *positions, outcome),
        _recovered(likely, verdict, state) if likely else None,
        data_verdict=verdict.request,
        data_accepted=accepted,
    )


def _position(verdict: ev.SpecVerdict, place: int, probs: ev.SpecProbs | None, state: State) -> Html:
    token = verdict.draft_token_ids[place]
    said = ["accepted", "rejected", "not looked at"][(place >= verdict.num_accepted) + (place > verdict.num_accepted)]
    return el(
        "div",
        f"position {said.split()[0]}",
        el("q", "", visible(state.piece_text(token))),
        _bars(probs, place) if probs else el("em", "", "no probabilities recorded"),
        el("b", "said", {"accepted": "✓ ", "rejected": "✗ "}.get(said, "") + said),
        data_draft=token,
        data_said=said,
    )


def _bars(probs: ev.SpecProbs, place: int) -> Html:
    target, draft, uniform = probs.target_probs[place], probs.draft_probs[place], probs.uniforms[place]
    needed = uniform * draft
    sign = "<" if needed < target else "≥"
    return el(
        "div",
        "against",
        _probability("model", target, needed),
        _probability("draft", draft, needed),
        el("span", "rule", f"u × draft = {uniform:.2f} × {draft:.2f} = {needed:.2f} {sign} {target:.2f}"),
        data_uniform=uniform,
    )


def _probability(who: str, value: float, needed: float) -> Html:
    fill = el("i", who, style=f"width:{100 * value:.1f}%")
    mark = el(
        "s", "uniform", style=f"left:{100 * needed:.1f}%", data_tip="u × draft: the model must be above this line"
    )
    return el("span", "probability", el("em", "", who), el("span", "scale", fill, mark), el("b", "", f"{value:.2f}"),
              data_who=who, data_value=value)  # fmt: skip


def _outcome(verdict: ev.SpecVerdict, state: State) -> Html | None:
    if verdict.token_id is None:
        return empty("No token could be sampled behind them.")
    why = "sampled in its place" if verdict.token_kind == "recovered" else "free, as all were accepted"
    return el(
        "div", f"position {verdict.token_kind}", el("q", "", visible(state.piece_text(verdict.token_id))),
        el("b", "said", f"{verdict.token_kind} token"), el("em", "", why),
        data_outcome=verdict.token_id, data_kind=verdict.token_kind,
    )  # fmt: skip


def _recovered(likely: LikelyTokens, verdict: ev.SpecVerdict, state: State) -> Html:
    """Where the draft was rejected: max(model − draft, 0), normalised."""
    columns = (likely.token_ids, likely.target_probs, likely.draft_probs, likely.recovered_probs)
    lines = [
        el(
            "div",
            "option" + (" taken" if token == verdict.token_id else ""),
            el("q", "", visible(state.piece_text(token))),
            *(
                el("span", f"wanted {who}", el("i", "", style=f"width:{100 * p:.1f}%"), data_tip=f"{who} {p:.3f}")
                for who, p in (("model", target), ("draft", draft), ("recovered", recovered))
            ),
            data_recovered=recovered,
            data_token=token,
        )
        for token, target, draft, recovered in zip(*columns, strict=True)
    ]
    names = el("div", "option names", *(el("span", "", name) for name in ("token", "model", "draft", "recovered")))
    title = label("at the rejected place: recovered = max(model − draft, 0), normalised")
    return el("div", "recovery", title, names, *lines)


def _acceptance(timeline: Timeline) -> Html | None:
    metrics = timeline.summary().metrics
    drafted, accepted = metrics.drafted, metrics.accepted
    if not drafted:
        return None
    width = 100 / len(drafted)
    bars = [
        el(
            "i",
            "bar",
            style=bar(width * (place + 0.2), width * 0.6, 0, 100 * hits / tried if tried else 0),
            data_position=place,
            data_drafted=tried,
            data_hits=hits,
            data_tip=f"draft {place + 1}: {hits} of {tried} accepted",
        )
        for place, (tried, hits) in enumerate(zip(drafted, accepted, strict=False))
    ]
    ticks = [(0.0, "0%"), (50.0, "50%"), (100.0, "100%")]
    title = label(f"acceptance by position, whole run: {sum(accepted)} of {count(sum(drafted), 'draft')}")
    return el("div", "", title, chart("position", "accepted", ticks, ("first draft", "last draft"), *bars))
