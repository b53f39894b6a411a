"""Block tables: which physical block holds each piece of a request's text."""

from __future__ import annotations

from sim.pool import NULL_BLOCK
from sim.request_state import RequestState
from sim.state import State
from viz.explain import work_on_blocks
from viz.figures.block import name, tip
from viz.figures.html import Html, el, join
from viz.figures.parts import Selection, chip, count, label
from viz.theme import request_class

_SHORT, _LONG = 12, 180
#: With the page to itself: tables, and entries of those that are not selected.
_MOST_TABLES, _MOST_ENTRIES = 14, 168


def block_table(state: State, selection: Selection) -> Html | None:
    """Draw the table of the selected request, beside other panels."""
    request = state.requests.get(selection.request) if selection.request is not None else None
    return _table(request, state, selection, _SHORT, "block table of ") if request else None


def block_tables(state: State, selection: Selection) -> Html | None:
    """Draw the tables of all requests that hold blocks, the selected one first."""
    holders = sorted(state.holders, key=lambda request: (request.serial != selection.request, request.serial))
    if not holders:
        return None
    chosen = holders[:_MOST_TABLES]
    title = label("block tables: the blocks of each request, in the order of its tokens")
    short = max(_SHORT, _MOST_ENTRIES // len(chosen))
    tables = [_table(r, state, selection, _LONG if r.serial == selection.request else short) for r in chosen]
    if len(holders) > len(chosen):
        left_out = count(len(holders) - len(chosen), "other request")
        tables.append(el("p", "elided", f"… and those of {left_out}: select one to see its table"))
    return join([title, *tables])


def _table(request: RequestState, state: State, selection: Selection, limit: int, title: str | None = None) -> Html:
    tables = request.block_ids
    head = label(join([title, chip(request.serial, selected=selection.request == request.serial)]))
    if not any(tables):
        why = "it has finished" if request.finished else "it has no blocks yet"
        return el("div", "table", head, el("span", "why", f"empty: {why}"), data_table=request.serial)
    shared = sum(state.pool.ref_counts[block_id] > 1 for table in tables for block_id in table)
    note = f"{count(shared, 'block')} shared: computed once, read by several requests" if shared else None
    if request.sending or request.receiving:
        note = f"still being {work_on_blocks(sending=request.sending, receiving=request.receiving)}"
    return el(
        "div",
        f"table {request_class(request.serial)}",
        head,
        *(_entries(table, request, state, selection, limit) for table in tables),
        el("span", "why", note) if note else None,
        data_table=request.serial,
    )


def _entries(table: list[int], request: RequestState, state: State, selection: Selection, limit: int) -> Html:
    """The blocks of one KV cache group. In a long table, those that a sliding window has passed are only counted."""
    num_passed = next((place for place, block_id in enumerate(table) if block_id != NULL_BLOCK), 0)
    first = num_passed if len(table) > limit else 0
    entries = [_entry(table[i], i, request, state, selection) for i in range(first, min(len(table), first + limit))]
    if first:
        entries.insert(0, el("span", "elided", f"{first} passed by the window …"))
    if len(table) > first + limit:
        entries.append(el("span", "elided", f"… {len(table) - first - limit} more"))
    return el("span", "entries", *entries)


def _entry(block_id: int, index: int, request: RequestState, state: State, selection: Selection) -> Html:
    block = state.pool.block(block_id)
    css = "entry" + (" shared" if block.kind == "shared" else "")
    if selection.block == block.block_id:
        css += " selected"
    return el(
        "button",
        css,
        name(block),
        data_act=f"block:{block.block_id}",
        data_block=block.block_id,
        data_entry=index,
        data_of=request.serial,
        data_tip=f"entry {index} → {tip(block, state)}",
    )
