"""A lookup in the prefix cache: how far a request got along its hashes, where it stopped, and why."""

from __future__ import annotations

from typing import Literal, NamedTuple

from engine.trace import events as ev
from sim.timeline import StepView
from viz.figures.html import Html, el
from viz.figures.parts import Selection, chip, count

#: Squares of one lookup; the middle of a longer one is counted.
_MOST_SQUARES = 40
_SHOWN_OF_HASH = 6

Stop = Literal["absent", "end", "last", "short", "dropped", "window"]


class Lookup(NamedTuple):
    """What a request asked for and got."""

    request: int
    num_hits: int
    """Blocks."""
    num_full: int
    """Blocks that its tokens fill, so that each has a hash."""
    num_tokens: int
    num_hit_tokens: int
    stop: Stop
    next_hash: str | None
    """The hash at which it stopped, if the trace tells it."""
    admitted: bool


def lookups(view: StepView) -> list[Lookup]:
    """The lookups of a step, in order."""
    return [_lookup(event, view) for event in view.events if isinstance(event, ev.KVLookup)]


def _lookup(event: ev.KVLookup, view: StepView) -> Lookup:
    size, plan = view.header.kv_cache.block_size, view.planned.plan
    num_hits, hashes = event.num_hit_tokens // size, view.planned.requests[event.request].block_hashes
    return Lookup(
        request=event.request,
        num_hits=num_hits,
        num_full=event.num_queried_tokens // size,
        num_tokens=event.num_queried_tokens,
        num_hit_tokens=event.num_hit_tokens,
        stop=_stop(event, view),
        next_hash=hashes[num_hits] if num_hits < len(hashes) else None,
        admitted=plan is not None and event.request in plan.rows,
    )


def _stop(event: ev.KVLookup, view: StepView) -> Stop:
    size, speculative = view.header.kv_cache.block_size, view.header.config.speculative
    num_full = event.num_queried_tokens // size
    if num_full == 0:
        return "short"
    if event.num_hit_tokens // size == (event.num_queried_tokens - 1) // size:
        return "last" if event.num_queried_tokens % size == 0 else "end"
    if event.num_hit_tokens and speculative is not None and speculative.drops_last_hit_block:
        return "dropped"
    windows = any(group.kind == "sliding_window" for group in view.header.kv_cache.groups)
    return "window" if windows else "absent"


def brief(lookup: Lookup) -> str:
    """Why it stopped, in a few words."""
    return {
        "absent": "no such hash",
        "end": "all full blocks found",
        "last": "the last token is computed",
        "short": "fills no block",
        "dropped": "one dropped for the drafter",
        "window": "no longer prefix for all layers",
    }[lookup.stop]


def lookup_line(lookup: Lookup, block_size: int, selection: Selection) -> Html:
    """Draw it: a square per full block, filled if it was found, and a sentence."""
    return el(
        "div",
        "lookup",
        chip(lookup.request, selected=selection.request == lookup.request),
        el("span", "squares", *_squares(lookup), data_tip=f"{lookup.num_hits} of {lookup.num_full} full blocks found"),
        el("p", "", _sentence(lookup, block_size)),
        data_lookup=lookup.request,
        data_hits=lookup.num_hits,
        data_full=lookup.num_full,
        data_stop=lookup.stop,
    )


def _squares(lookup: Lookup) -> list[Html]:
    num_hits, num_full = lookup.num_hits, lookup.num_full
    if num_full > _MOST_SQUARES:  # in proportion: one square at least of what there is at all
        shown = round(_MOST_SQUARES * num_hits / num_full)
        num_hits = min(max(shown, int(num_hits > 0)), _MOST_SQUARES - int(num_hits < num_full))
        num_full = _MOST_SQUARES
    return [el("i", "found" if place < num_hits else "") for place in range(num_full)]


def _sentence(lookup: Lookup, block_size: int) -> str:
    if lookup.stop == "short":
        return f"is too short to share: its {count(lookup.num_tokens, 'token')} fill no block of {block_size}."
    if lookup.num_hits:
        found = (
            f"finds {lookup.num_hits:,} of its {count(lookup.num_full, 'full block')}: {lookup.num_hit_tokens:,} of"
            f" {count(lookup.num_tokens, 'token')} need not be computed."
        )
    else:
        found = f"finds none of its {count(lookup.num_full, 'full block')}, so it computes all its tokens."
    later = "" if lookup.admitted else " It is not admitted in this step, and asks again later."
    return f"{found} {_why_stopped(lookup, block_size)}{later}"


def _why_stopped(lookup: Lookup, block_size: int) -> str:
    match lookup.stop:
        case "end":
            rest = lookup.num_tokens - lookup.num_hit_tokens
            return f"The {count(rest, 'token')} behind them fill no block."
        case "last":
            return "Its last block is not taken: one token at least is computed, for the next one is sampled from it."
        case "dropped":
            return "The last block found is dropped: the drafter needs what its tokens bring out, so they run again."
        case "window":
            return "From no longer prefix could all layers go on: those with a sliding window need its last blocks."
    which = "It stops at its first block" if not lookup.num_hits else f"It stops at block {lookup.num_hits + 1:,}"
    name = f" ({lookup.next_hash[:_SHOWN_OF_HASH]}…)" if lookup.next_hash else ""
    return f"{which}: no cached block has its hash{name}."
