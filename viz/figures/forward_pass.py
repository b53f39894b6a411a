"""Forward pass: the super-sequence of a step, where each of its tokens is kept, and which tokens come out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.errors import TraceError
from engine.trace import events as ev
from sim.plan import PlanState
from sim.state import RequestState, State
from sim.timeline import StepView
from viz.cut import UNPLANNED, plan_of
from viz.figures.html import Html, el, join
from viz.figures.parts import Selection, chip, count, empty, label, panel
from viz.theme import request_class

_COLUMNS, _COLUMNS_ALONE = 20, 360
_BLOCKS, _BLOCKS_ALONE = 8, 64
#: Slots are drawn one by one up to this block size.
_MOST_SLOTS = 64
_KEY = join([el("i", "slot new"), "written in this step ", el("i", "slot old"), "already there, read by attention"])
_VISIBLE = str.maketrans({" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"})


class Token(NamedTuple):
    """One column of the super-sequence."""

    place: int  # in the super-sequence
    request: int
    token_id: int
    position: int  # in its request
    slot: int  # block id × block_size + offset


@dataclass
class Segment:
    """The tokens of one request in a step, which stand together in the super-sequence."""

    request: int
    tokens: list[Token] = field(default_factory=list)


def super_sequence(view: StepView) -> list[Segment]:
    """The tokens of a step in the order in which the model sees them.

    From the recorded tensors where the trace has them (level forward), else from plan and block tables, which say the
    same.

    Raises:
        TraceError: the trace ends before the step was planned, or its block tables do not hold the plan.
    """
    return _recorded(view.forward) if view.forward is not None else _planned(view.plan, view.planned)


def _recorded(forward: ev.ForwardInputs) -> list[Segment]:
    segments = []
    for request, start, end in zip(
        forward.requests, forward.query_start_loc, forward.query_start_loc[1:], strict=False
    ):
        rows = range(start, end)
        tokens = [Token(i, request, forward.input_ids[i], forward.positions[i], forward.slot_mapping[i]) for i in rows]
        segments.append(Segment(request, tokens))
    return segments


def _planned(plan: PlanState, state: State) -> list[Segment]:
    segments, index = [], 0
    for serial, row in plan.rows.items():
        request = state.requests[serial]
        token_ids, table = [*request.token_ids, *row.draft_token_ids], request.block_ids[0]
        end = row.num_computed_tokens + row.num_scheduled_tokens
        if end > min(len(token_ids), len(table) * state.block_size):
            raise TraceError(f"The trace gives r{serial} no block, or no token, for what step {plan.step} computes.")
        segment = Segment(serial)
        for position in range(row.num_computed_tokens, end):
            entry, offset = divmod(position, state.block_size)
            slot = table[entry] * state.block_size + offset
            segment.tokens.append(Token(index, serial, token_ids[position], position, slot))
            index += 1
        segments.append(segment)
    return segments


def forward_pass(view: StepView, selection: Selection) -> Html:
    """Draw the super-sequence, the blocks it writes to, and the tokens that were sampled."""
    alone = selection.view == "forward"
    plan = plan_of(view)
    if plan is None or not plan.complete:
        return panel("forward", "Forward pass", "nothing is known of it", empty(UNPLANNED))
    segments = super_sequence(view)
    total = sum(len(segment.tokens) for segment in segments)
    if not total:
        return panel("forward", "Forward pass", "nothing to compute in this step", empty(_idle(view)))
    return panel(
        "forward",
        "Forward pass",
        f"{count(total, 'token')} in one super-sequence: the keys and values of each go to one slot of paged memory",
        _strip(segments, view.planned, selection, _COLUMNS_ALONE if alone else _COLUMNS),
        _blocks(segments, view.planned, selection, _BLOCKS_ALONE if alone else _BLOCKS),
        _sampled(view, selection, alone),
        aside=_KEY,
    )


def _idle(view: StepView) -> str:
    return "Requests wait, but none could be given a token." if view.planned.waiting else "No request is left."


def visible(piece: str) -> str:
    """The text of a token with its white space made visible."""
    return piece.translate(_VISIBLE) or "∅"


# --- the super-sequence -----------------------------------------------------------------------------------------


def _strip(segments: list[Segment], state: State, selection: Selection, columns: int) -> Html:
    shares = _shares([len(segment.tokens) for segment in segments], columns)
    drawn = [
        _segment(segment, share, state, selection) for segment, share in zip(segments, shares, strict=True) if share
    ]
    hidden = sum(1 for share in shares if not share)
    if hidden:
        drawn.append(el("div", "elided", f"… {count(hidden, 'more request', 'more requests')}"))
    names = el("div", "names", el("span", "", "token"), el("span", "", "position"), el("span", "", "slot"))
    wrapped = " wrapped" if selection.view == "forward" else ""
    return el("div", "strip", names, el("div", f"segments{wrapped}", *drawn, data_scroll="strip"))


def _shares(lengths: list[int], columns: int) -> list[int]:
    """How many columns each segment gets: short ones whole, long ones an equal part of what is left."""
    shares = [0] * len(lengths)
    left = columns
    for waiting, i in enumerate(sorted(range(len(lengths)), key=lambda i: lengths[i])):
        shares[i] = min(lengths[i], max(left // (len(lengths) - waiting), 1), left)
        left -= shares[i]
    return shares


def _segment(segment: Segment, share: int, state: State, selection: Selection) -> Html:
    css = f"segment {request_class(segment.request)}"
    if selection.request == segment.request:
        css += " mine"
    columns = [_token(token, state) for token in segment.tokens[:share]]
    if share < len(segment.tokens):
        columns.append(el("span", "elided", f"… {len(segment.tokens) - share} more"))
    return el("div", css, *columns, data_segment=segment.request, data_tokens=len(segment.tokens))


def _token(token: Token, state: State) -> Html:
    block, offset = divmod(token.slot, state.block_size)
    piece = visible(state.piece_text(token.token_id))
    tip = f"r{token.request}, token {token.position}: id {token.token_id} → block {block}, slot {offset}"
    return el(
        "button",
        "tok",
        el("span", "piece", piece),
        el("span", "pos", token.position),
        el("span", "slot", f"{block}:{offset}"),
        data_act=f"request:{token.request}",
        data_token=token.place,
        data_slot=token.slot,
        data_tip=tip,
    )


# --- the blocks it writes to ------------------------------------------------------------------------------------


def _blocks(segments: list[Segment], state: State, selection: Selection, limit: int) -> Html:
    written = {token.slot for segment in segments for token in segment.tokens}
    touched = [_touched(segment, state.block_size) for segment in segments]
    shares = _shares([len(entries) for entries in touched], limit)
    cards: list[Html] = []
    for segment, entries, share in zip(segments, touched, shares, strict=True):
        request = state.requests[segment.request]
        cards += [_block(request, *entry, written, state.block_size, selection) for entry in entries[:share]]
        if 0 < share < len(entries):
            cards.append(el("div", "elided", f"… {count(len(entries) - share, 'more block', 'more blocks')}"))
    hidden = sum(1 for share in shares if not share)
    if hidden:
        cards.append(el("div", "elided", f"… blocks of {count(hidden, 'more request', 'more requests')}"))
    names = el("div", "names", el("span", "", "block"))
    return el("div", "strip", names, el("div", "cards", *cards))


def _touched(segment: Segment, block_size: int) -> list[tuple[int, int]]:
    """Entries of the request's block table in which its tokens of this step are kept, with their blocks."""
    return sorted({(token.position // block_size, token.slot // block_size) for token in segment.tokens})


def _block(
    request: RequestState, entry: int, block_id: int, written: set[int], block_size: int, selection: Selection
) -> Html:
    css = f"paged {request_class(request.serial)}"
    if selection.block == block_id:
        css += " selected"
    before = f", after {count(entry, 'block')} of the same request" if entry else ""
    return el(
        "button",
        css,
        el("span", "slots", *_slots(request, entry, block_id, written, block_size)),
        el("span", "name", f"block {block_id}", el("em", "", f" +{entry} before") if entry else None),
        data_act=f"block:{block_id}",
        data_block=block_id,
        data_tip=f"block {block_id} holds tokens {entry * block_size} to {(entry + 1) * block_size - 1} "
        f"of r{request.serial}{before}",
    )


def _slots(request: RequestState, entry: int, block_id: int, written: set[int], block_size: int) -> Iterator[Html]:
    first = block_id * block_size
    filled = request.num_computed_tokens - entry * block_size
    states = ["new" if first + k in written else "old" if k < filled else "" for k in range(block_size)]
    if block_size > _MOST_SLOTS:
        yield from (
            el("i", state, style=f"flex-grow:{states.count(state)}") for state in ("old", "new", "") if state in states
        )
        return
    for k, state in enumerate(states):
        yield el("i", state, data_slot=first + k if state == "new" else None)


# --- what comes out ---------------------------------------------------------------------------------------------


def _sampled(view: StepView, selection: Selection, alone: bool) -> Html | None:
    appended = {e.request: e.appended for e in view.events if isinstance(e, ev.UpdateRequest) and e.appended}
    if not appended:
        return None
    if alone and view.logits is not None:
        return _distributions(view.logits, view.after, selection)
    limit = _COLUMNS_ALONE if alone else 16
    results = [
        el("span", f"next {request_class(serial)}", chip(serial), el("q", "", _text(token_ids, view.after)))
        for serial, token_ids in list(appended.items())[:limit]
    ]
    if len(appended) > limit:
        results.append(el("span", "elided", f"… {len(appended) - limit} more"))
    names = el("div", "names", el("span", "", "sampled"))
    return el("div", "strip sampled", names, el("div", "results", *results), data_sampled=len(appended))


def _text(token_ids: list[int], state: State) -> str:
    return "".join(visible(state.piece_text(token_id)) for token_id in token_ids)


def _distributions(logits: ev.ForwardLogits, state: State, selection: Selection) -> Html:
    """Per sampled row the likeliest next tokens, with the one that was taken."""
    rows = zip(logits.requests, logits.top_token_ids, logits.top_probs, logits.sampled_token_ids, strict=True)
    drawn = [_distribution(*row, state, selection) for row in list(rows)[:24]]
    title = label(join(["next token: ", el("em", "", "the likeliest ones, and the one that was taken")]))
    return el("div", "next-tokens", title, el("div", "distributions", *drawn), data_sampled=len(set(logits.requests)))


def _distribution(
    serial: int, token_ids: list[int], probs: list[float], taken: int, state: State, selection: Selection
) -> Html:
    shown = list(zip(token_ids, probs, strict=True))[:5]
    lines = [
        el(
            "div",
            "option taken" if token_id == taken else "option",
            el("q", "", visible(state.piece_text(token_id))),
            el("span", "wanted", el("i", "", style=f"width:{100 * prob:.1f}%")),
            el("b", "", f"{100 * prob:.0f}%"),
        )
        for token_id, prob in shown
    ]
    if taken not in [token_id for token_id, _ in shown]:
        lines.append(el("div", "option taken", el("q", "", visible(state.piece_text(taken))), el("b", "", "taken")))
    head = chip(serial, selected=selection.request == serial)
    return el("div", f"distribution {request_class(serial)}", head, *lines)
