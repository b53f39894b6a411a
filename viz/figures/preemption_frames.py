"""The four frames of a preemption: the full pool, the failed allocation, the victim, its return."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from engine.config import Policy
from sim.pool import PoolState
from sim.preemptions import Preemption
from sim.request_state import RequestState
from sim.state import State
from sim.timeline import Timeline
from viz.explain import RULES, Rule
from viz.figures.html import Child, Html, el
from viz.figures.parts import chip, count, label
from viz.theme import request_class

#: Requests and blocks drawn in a frame.
MOST_REQUESTS = 6
MOST_BLOCKS = 24

#: Who gives way, by policy.
LEAST: dict[Policy, str] = {"fcfs": "the last of those that run", "priority": "the least urgent of those that run"}


def full_pool(told: Preemption, state: State) -> tuple[Child, ...]:
    """Who holds how much of the pool as the step begins."""
    pool = state.pool
    named = [told.event.for_request, told.victim]
    everyone = [state.requests[serial] for serial in state.running]
    first = [request for request in everyone if request.serial not in named]
    shown = set(named) | {request.serial for request in first[: max(0, MOST_REQUESTS - len(set(named)))]}
    rows = [_holder(request, pool) for request in everyone if request.serial in shown]
    hidden = len(everyone) - len(rows)
    return (
        el("p", "", f"{pool.num_in_use:,} of {count(pool.num_blocks - 1, 'block')} are in use as the step begins."),
        _pool_bar(pool, state.running),
        *rows,
        el("p", "more", f"… {hidden:,} more run") if hidden else None,
    )


def _holder(request: RequestState, pool: PoolState) -> Html:
    blocks = {block_id for table in request.block_ids for block_id in table if block_id}
    shared = sum(pool.ref_counts[block_id] > 1 for block_id in blocks)
    words = f"{count(len(blocks), 'block')} for {count(request.num_computed_tokens, 'token')}"
    words += f", {shared} shared" if shared else ""
    row = chip(request.serial), el("span", "", words)
    return el("div", "row", *row, data_holder=request.serial, data_blocks=len(blocks))


def _pool_bar(pool: PoolState, running: list[int]) -> Html:
    """The pool as one bar: the blocks of each request in its colour, a shared one in that of its first reader."""
    held = Counter(owners[0] for owners in pool.owners if owners)
    order = [*(serial for serial in running if serial in held), *(serial for serial in held if serial not in running)]
    parts = [
        el(
            "i",
            request_class(serial),
            style=f"flex:{held[serial]}",
            data_part_of=serial,
            data_blocks=held[serial],
            data_tip=f"r{serial}: {count(held[serial], 'block')}",
        )
        for serial in order
    ]
    free = el("i", "free", style=f"flex:{pool.num_free}", data_tip=f"{pool.num_free:,} free") if pool.num_free else None
    return el("div", "pool-bar", *parts, free, data_in_use=pool.num_in_use, data_free=pool.num_free)


# --- an allocation fails ------------------------------------------------------------------------------------------


def blocks_missing(told: Preemption, state: State) -> tuple[Child, ...]:
    """Whose allocation failed, and how many blocks it lacked."""
    event, asking = told.event, state.requests[told.event.for_request]
    table = [block_id for block_id in asking.block_ids[0] if block_id]
    cells = [_cell(block_id, f"used {request_class(asking.serial)}", "it has this one", "held") for block_id in table]
    left_out = max(0, len(cells) - MOST_BLOCKS)
    wanted = [
        el("span", "slot got" if place < event.available else "slot", "?", data_wanted=place)
        for place in range(min(event.needed, MOST_BLOCKS))
    ]
    more = event.needed - len(wanted)
    return (
        el("p", "", chip(asking.serial), f" {_needs(asking, table, state, event.needed)}"),
        el(
            "div",
            "cells",
            el("span", "elided", f"{left_out:,} …") if left_out else None,
            *cells[left_out:],
            *wanted,
            el("span", "elided", f"… {more:,} more") if more else None,
        ),
        el(
            "p",
            "bad",
            f"{count(told.num_missing, 'block')} {are(told.num_missing)} missing: ",
            el("code", "", "free_block_queue"),
            f" holds {event.available:,}.",
            data_missing=told.num_missing,
        ),
        _rule(RULES["slots"]),
    )


def _needs(asking: RequestState, table: list[int], state: State, needed: int) -> str:
    room = len(table) * state.block_size
    full = f"its {count(len(table), 'block')} have room for {count(room, 'token')}" if table else "it has no block yet"
    return f"has {count(asking.num_computed_tokens, 'token')} computed, {full}; it needs {count(needed, 'block')} more."


def _cell(block_id: int, css: str, tip: str, role: Literal["held", "given back"]) -> Html:
    return el("span", f"block {css}", block_id, data_block=block_id, data_role=role, data_tip=tip)


def _rule(rule: Rule) -> Html:
    return el("button", "rule", rule.statement, el("span", "place", rule.place.symbol), data_code=str(rule.place))


# --- one gives way ------------------------------------------------------------------------------------------------


def gives_way(told: Preemption, missing: State, settled: State, planned: State) -> tuple[Child, ...]:
    """Who was the victim and why it; what became of its blocks."""
    victim, policy = missing.requests[told.victim], missing.policy
    why = f" is {LEAST[policy]}: " + (
        f"its priority is {victim.priority}." if policy == "priority" else "first come, first served."
    )
    return (
        el("p", "", chip(told.victim, hollow=True), why),
        _queue(told, missing),
        label(f"it gives back {count(len(told.freed_block_ids), 'block')}, tail first"),
        _given_back(told, settled, planned),
        el("p", "", *_findable(told, settled, planned)),
        _rule(RULES["victim"]),
    )


def _queue(told: Preemption, state: State) -> Html:
    """The running queue in its order; with priorities, each below its request."""
    first = state.running[: MOST_REQUESTS - 1]
    shown = first if told.victim in first else [*first, told.victim]
    seats = []
    for serial in shown:
        urgent = el("em", "", f"prio {state.requests[serial].priority}") if state.policy == "priority" else None
        css = "seat victim" if serial == told.victim else "seat"
        seats.append(el("span", css, chip(serial, hollow=serial == told.victim), urgent, data_seat=serial))
    hidden = len(state.running) - len(shown)
    if hidden:
        seats.insert(len(first), el("span", "elided", f"… {hidden:,} …"))
    return el("div", "seats", *seats, data_policy=state.policy)


def _given_back(told: Preemption, settled: State, planned: State) -> Html:
    """Its blocks as the step goes on: taken by another, free and findable, or free and empty."""
    cells = [
        _cell(block_id, *_fate(block_id, settled, planned), "given back")
        for block_id in told.freed_block_ids[:MOST_BLOCKS]
        if block_id
    ]
    hidden = len(told.freed_block_ids) - len(cells)
    more = el("span", "elided", f"… {hidden:,} more") if hidden > 0 else None
    return el("div", "cells", *cells, more)


def _fate(block_id: int, settled: State, planned: State) -> tuple[str, str]:
    owners, pool = planned.pool.owners[block_id], planned.pool
    if owners:
        taken = "still read by" if settled.pool.owners[block_id] else "handed out at once to"
        return f"used {request_class(owners[0])}", f"block {block_id}: {taken} r{owners[0]}"
    if pool.hashes[block_id] is not None:
        return "cached", f"block {block_id}: free, what it holds can still be found"
    return "free", f"block {block_id}: free, what it holds cannot be found: it was not full"


def _findable(told: Preemption, settled: State, planned: State) -> list[Child]:
    """How many of the blocks keep their content, now and at the end of the step."""
    ids, before, later = told.freed_block_ids, settled.pool, planned.pool
    full = [block_id for block_id in ids if before.hashes[block_id] is not None]
    shared = sum(bool(before.owners[block_id]) for block_id in full)
    taken = sum(later.hashes[block_id] != before.hashes[block_id] for block_id in full)
    said = f"{len(full):,} of them {are(len(full))} full, and can be found by content"
    said += f"; {shared:,} of these others still read" if shared else ""
    said += f"; {taken:,} of these {are(taken)} handed out at once, and forgotten" if taken else ""
    return [el("span", "", f"{said}.", data_findable=len(full), data_shared=shared, data_taken=taken)]


def are(number: int) -> str:
    """The verb behind a count."""
    return "is" if number == 1 else "are"


# --- it comes back ------------------------------------------------------------------------------------------------


def came_back(told: Preemption, timeline: Timeline) -> tuple[Child, ...]:
    """When it was resumed, what it found, and what it computed once more."""
    if told.back is None:
        return (el("p", "", chip(told.victim, hollow=True), f" {_why_never(told, timeline)}"),)
    had, found, lost = told.event.num_computed_tokens, told.num_found_tokens, told.num_lost_tokens
    waited = told.back.step - told.step
    bar = el(
        "div",
        f"token-bar {request_class(told.victim)}",
        el("i", "found", found, style=f"flex:{found}", data_found=found, data_tip="found") if found else None,
        el("i", "again", lost, style=f"flex:{lost}", data_again=lost, data_tip="computed again") if lost else None,
    )
    pieces = f" ({' + '.join(map(str, told.pieces[:8]))}{' + …' if len(told.pieces) > 8 else ''})"
    caught_up = f"Its next token comes in step {told.caught_up}."
    again = "Before it has its next token, it is preempted once more, or ends."
    return (
        el("p", "", chip(told.victim), f" waited {count(waited, 'step')}; then there were blocks for it."),
        label(f"the {count(had, 'token')} it had computed"),
        bar,
        el("p", "", _recovered(found, lost)),
        el(
            "p",
            "",
            f"The prefill takes {count(len(told.pieces), 'step')}{pieces if len(told.pieces) > 1 else ''}. ",
            again if told.caught_up is None else caught_up,
            data_pieces=len(told.pieces),
        ),
    )


def _recovered(found: int, lost: int) -> str:
    if found == 0:
        return "None of them are left in the prefix cache: all are computed once more."
    if lost == 0:
        return "All of them are found in the prefix cache: nothing is computed twice."
    return f"{found:,} are found in the prefix cache, {lost:,} are computed once more."


def _why_never(told: Preemption, timeline: Timeline) -> str:
    life = timeline.life_lines[told.victim]
    if life.finished is not None:
        return f"ends in step {life.finished} before it comes back: {life.request.finish_reason}."
    return "still waits when the trace ends."
