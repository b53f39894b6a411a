"""Replay: whether the scheduler, run again on the recorded inputs alone, decides the same; if not, where it parts."""

from __future__ import annotations

from typing import Any

from engine.errors import TraceError
from engine.trace.events import Event, EventClass, tag_of
from sim.replay import Divergence, ReplayReport
from sim.timeline import StepView, Timeline
from viz.figures.event_fields import fields, value
from viz.figures.html import Html, el
from viz.figures.invariants import ask_first
from viz.figures.parts import Selection, count, empty, label, panel
from viz.proofs import replayed, takes_long


def replay_panel(timeline: Timeline, view: StepView, selection: Selection) -> Html:
    """Draw the verdict; of a large trace only when it was asked for."""
    title, subtitle = "Replay", "the scheduler runs again on the recorded inputs alone: does it decide the same?"
    if takes_long(timeline) and not selection.asked:
        return panel("replay", title, subtitle, *ask_first(timeline))
    try:
        report = replayed(timeline)
    except TraceError as error:
        return panel("replay", title, subtitle, empty(f"This trace cannot be replayed: {error}"))
    return panel(
        "replay",
        title,
        subtitle,
        _verdict(report),
        *(_divergence(report.divergence, view.step) if report.divergence else ()),
        label("what was decided again, and came out the same"),
        _by_type(report) if report.agreed else empty("Nothing: the trace holds no decision, or the first one differs."),
    )


def _verdict(report: ReplayReport) -> Html:
    decisions, divergences = count(report.num_decisions, "decision"), count(report.num_divergences, "divergence")
    notes = [report.truncated] if report.truncated else []
    if report.num_trusted:
        masks = count(report.num_trusted, "answer")
        notes.append(f"{masks} of the grammar backend were taken as recorded: `orrery replay` computes them again.")
    css = "bad" if report.divergence else "" if report.truncated else "good"
    sign = "✗ " if report.divergence else "" if report.truncated else "✓ "
    return el(
        "p",
        "proof",
        el("b", css, f"{sign}{decisions}, {divergences}"),
        el("span", "sub", f"from {count(report.num_inputs, 'input')} in {count(report.num_steps, 'step')}"),
        *(el("span", "sub", note) for note in notes),
        data_agreed=report.num_decisions,
        data_differs=report.num_divergences,
    )


def _by_type(report: ReplayReport) -> Html:
    widest = max(report.agreed.values())
    ordered = sorted(report.agreed.items(), key=lambda each: -each[1])
    return el("div", "by-type", *(_type(kind, number, widest) for kind, number in ordered))


def _type(kind: type[Event], number: int, widest: int) -> Html:
    tag = tag_of(kind)
    words = "compared again" if kind.kind is EventClass.DECISION else "derived from the inputs, compared again"
    return el(
        "div",
        "type-row",
        el("code", "", tag),
        el("span", "scale", el("i", "model", style=f"width:{100 * number / widest:.1f}%")),
        el("b", "", f"{number:,}"),
        data_replayed=tag,
        data_number=number,
        data_tip=f"{tag}: {number:,} {words}",
    )


# --- the first decision that differs --------------------------------------------------------------------------------


def _divergence(divergence: Divergence, step: int) -> list[Html]:
    where = "in this step" if divergence.step == step else f"in step {divergence.step:,}"
    tip = f"go to step {divergence.step:,}"
    link = el("button", "link", where, data_act=f"step:{divergence.step}", data_tip=tip)
    said = el("p", "", "The first decision that differs is ", link, f": {divergence.why}.")
    none_after = el("p", "sub", "What follows proves nothing: the two are in different states from here on.")
    return [
        el("div", "violation", said, none_after, data_divergence_step=divergence.step),
        _side_by_side(divergence),
        el("p", "sub", f"The core at that moment: {_state(divergence.state)}."),
    ]


def _side_by_side(divergence: Divergence) -> Html:
    recorded, recomputed = _fields(divergence.recorded), _fields(divergence.recomputed)
    differing = {each.field for each in divergence.differences}
    names = [*recorded, *(name for name in recomputed if name not in recorded)]
    head = el("tr", "", *(el("th", "", words) for words in ("", "recorded", "decided now")))
    what = el("tr", "", el("td", "", "type"), *(_what(e) for e in (divergence.recorded, divergence.recomputed)))
    rows = [
        el(
            "tr",
            "differs" if name in differing else "",
            el("td", "", name),
            *(el("td", "", value(side[name]) if name in side else "–") for side in (recorded, recomputed)),
            data_field=name,
            data_differs_here="yes" if name in differing else None,
        )
        for name in names
    ]
    return el("div", "scroll", el("table", "fields", head, what, *rows))


def _what(event: Event | None) -> Html:
    return el("td", "", el("code", "", tag_of(event)) if event is not None else "nothing")


def _fields(event: Event | None) -> dict[str, Any]:
    return {} if event is None else fields(event)


def _state(state: dict[str, Any]) -> str:
    waiting = " ".join(state["waiting"]) or "nobody"
    running = " ".join(state["running"]) or "nobody"
    return f"running {running}, waiting {waiting}, {count(state['free_blocks'], 'free block')}"
