"""Guided decoding: where the output stands in its grammar, which tokens that allows, and what it does to the logits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from engine.trace import events as ev
from sim.state import RequestState, State
from sim.timeline import StepView, Timeline
from viz.figures.forward_pass import visible
from viz.figures.guided_automaton import automaton_figure
from viz.figures.html import Html, el
from viz.figures.parts import Selection, chip, count, empty, empty_but, label, panel

_BITS = 32
#: Words of a mask that are drawn: those with an allowed token come first.
_WORDS = 6
_PIECES = 24


def guided(timeline: Timeline, view: StepView, selection: Selection) -> Html:
    """Draw the grammar of the selected guided request, or of the first one of the step."""
    request = _chosen(view, selection)
    if request is None:
        return panel("guided", "Guided decoding", _SUBTITLE, _why_empty(timeline))
    return panel(
        "guided",
        "Guided decoding",
        _SUBTITLE,
        el("div", "heading", chip(request.serial, selected=True), *_grammar(request)),
        _automaton(request, view),
        *_masks(timeline, view, request.serial),
        _logits(timeline, view, request.serial),
    )


_SUBTITLE = "the grammar is an automaton: only tokens that it can read from its current state may be sampled"


def _why_empty(timeline: Timeline) -> Html:
    later = _first_advance(timeline)
    if later is None:
        return empty_but("No request of this trace has a grammar: every token was allowed.", "fsm-choice")
    return empty(f"No request with a grammar is here at this step; the first token of one is sampled in step {later}.")


@lru_cache(maxsize=8)
def _first_advance(timeline: Timeline) -> int | None:
    """The first step in which a token of a guided request was read; of a long trace its events are read up to there."""
    if ev.GrammarAdvanced not in timeline.trace.types:
        return None
    return next((event.step for event in timeline.events if isinstance(event, ev.GrammarAdvanced)), None)


def _chosen(view: StepView, selection: Selection) -> RequestState | None:
    guided_ones = [r for r in view.after.requests.values() if r.grammar and (not r.ended or r.finish_step == view.step)]
    sampled = {e.request for e in view.events if isinstance(e, ev.GrammarAdvanced)}
    guided_ones.sort(key=lambda request: (request.serial != selection.request, request.serial not in sampled))
    return next(iter(guided_ones), None)


def _grammar(request: RequestState) -> Iterator[Html]:
    assert request.grammar is not None
    text = request.grammar.text
    yield el("span", "", request.grammar.kind)
    yield el("q", "", text if len(text) <= 200 else text[:199] + "…")


def _automaton(request: RequestState, view: StepView) -> Html:
    if request.failure:
        return empty(f"The grammar could not be compiled: {request.failure}")
    if request.automaton is None:
        return empty("The grammar is not compiled yet, or has more to it than a drawing can show.")
    advanced = _advanced(view, request.serial)
    before = advanced.before if advanced else request.automaton_state
    path = [state for state in advanced.after if state is not None] if advanced else []
    return automaton_figure(request.automaton, before, path)


def _advanced(view: StepView, serial: int) -> ev.GrammarAdvanced | None:
    return next((e for e in view.events if isinstance(e, ev.GrammarAdvanced) and e.request == serial), None)


# --- the mask ---------------------------------------------------------------------------------------------------


def _masks(timeline: Timeline, view: StepView, serial: int) -> Iterator[Html]:
    filled = next((e for e in view.events if isinstance(e, ev.GrammarBitmaskFilled) and serial in e.requests), None)
    if filled is None:
        yield empty("No mask in this step: the request samples nothing here.")
        return
    row = filled.requests.index(serial)
    for place, (digest, allowed) in enumerate(zip(filled.digests[row], filled.num_allowed[row], strict=True)):
        of = f" behind {count(place, 'draft')}" if place else ""
        words, vocab_size = mask_words(timeline, digest), view.header.model.vocab_size
        yield label(f"bitmask{of}: {count(allowed, 'token')} of {vocab_size:,} allowed")
        if place and allowed == vocab_size:
            yield empty("Nothing is masked here: the grammar cannot read a draft before it, which is rejected.")
        elif words is None:
            yield empty("The trace does not hold the words of this mask.")
        else:
            yield _mask(words, allowed, view.after)


def mask_words(timeline: Timeline, digest: str) -> list[int] | None:
    """The 32-bit words of a mask by its name, as unsigned numbers; None if the trace does not hold them."""
    position = timeline.touches.masks.get(digest)
    if position is None:
        return None
    filled = timeline.events[position]
    assert isinstance(filled, ev.GrammarBitmaskFilled)
    data = filled.words[digest]
    return [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]


def allowed_tokens(words: Iterable[int]) -> Iterator[int]:
    """Ids of the tokens whose bit is set."""
    for number, word in enumerate(words):
        yield from (number * _BITS + bit for bit in range(_BITS) if word >> bit & 1)


def _mask(words: list[int], allowed: int, state: State) -> Html:
    telling = [number for number, word in enumerate(words) if word]
    shown = sorted(telling[:_WORDS])
    rows = [_word(number, words[number], state) for number in shown]
    left_out = len(words) - len(shown)
    rest = f"… {left_out} more words" + ("" if len(telling) > _WORDS else ", every bit 0")
    some = [token for token, _ in zip(allowed_tokens(words), range(_PIECES), strict=False)]
    pieces = [
        el("q", "piece", visible(state.piece_text(token)), data_allowed=token, data_tip=f"token {token}")
        for token in some
    ]
    more = el("span", "more", f"… {allowed - len(some):,} more") if allowed > len(some) else None
    return el(
        "div", "mask", *rows, el("p", "more", rest) if left_out else None,
        el("div", "pieces", el("em", "", "allowed"), *pieces, more), data_num_allowed=allowed,
    )  # fmt: skip


def _word(number: int, word: int, state: State) -> Html:
    bits = [
        el(
            "i",
            "on" if word >> bit & 1 else "",
            data_bit=number * _BITS + bit if word >> bit & 1 else None,
            data_tip=f"token {number * _BITS + bit} {visible(state.piece_text(number * _BITS + bit))}",
        )
        for bit in range(_BITS)
    ]
    return el("div", "word", el("em", "", f"word {number}"), el("span", "bits", *bits))


# --- the logits -------------------------------------------------------------------------------------------------


def _logits(timeline: Timeline, view: StepView, serial: int) -> Html | None:
    logits = view.logits
    if logits is None:
        return empty("Logits are recorded from trace level forward on.")
    if serial not in logits.requests:
        return None
    row = logits.requests.index(serial)
    allowed = _allowed(timeline, view, serial)
    columns = (logits.top_token_ids[row], logits.top_logits[row], logits.top_probs[row])
    shown = list(zip(*columns, strict=True))[:10]
    lowest, highest = min(z for _, z, _ in shown), max(z for _, z, _ in shown)
    taken = logits.sampled_token_ids[row]
    lines = [
        el(
            "div",
            "option" + (" taken" if token == taken else "") + (" masked" if masked else ""),
            el("q", "", visible(view.after.piece_text(token))),
            el("span", "wanted", el("i", "", style=f"width:{8 + 92 * (z - lowest) / (highest - lowest or 1):.1f}%")),
            el("b", "", f"{z:.2f}"),
            el("b", "", "−∞" if masked else f"{z:.2f}"),
            el("b", "", f"{100 * probability:.1f}%"),
            data_logit=token,
            data_masked=masked,
        )
        for token, z, probability in shown
        for masked in [allowed is not None and token not in allowed]
    ]
    names = ("token", "logit", "", "masked", "prob.")
    head = el("div", "option names", *(el("span", "", name) for name in names))
    title = label("logits of the likeliest tokens, before and after masking")
    return el("div", "logits", title, head, *lines)


def _allowed(timeline: Timeline, view: StepView, serial: int) -> set[int] | None:
    for event in view.events:
        if isinstance(event, ev.GrammarBitmaskFilled) and serial in event.requests:
            words = mask_words(timeline, event.digests[event.requests.index(serial)][0])
            return None if words is None else set(allowed_tokens(words))
    return None
