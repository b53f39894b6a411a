"""KV memory: every physical block of the pool, the queue of the free ones, and the block table of one request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from engine.trace import events as ev
from sim.pool import NULL_BLOCK, BlockState, PoolState
from sim.request_state import RequestState
from sim.state import State
from sim.timeline import StepView
from viz.explain import work_on_blocks
from viz.figures.html import Html, el, join
from viz.figures.parts import Selection, chip, count, empty, label, panel
from viz.theme import request_class, request_colour

#: A larger pool is drawn as tiles of many blocks, with a window onto single ones.
_MOST_SINGLE, _MOST_SINGLE_ALONE = 400, 1000
_TILES = 320
_WINDOW, _WINDOW_ALONE = 64, 160

#: Beside the other panels, more blocks than this are drawn small, without their numbers.
_MOST_NUMBERED = 130

_QUEUE, _QUEUE_ALONE = (6, 3), (48, 16)
_TABLE, _TABLE_ALONE = 14, 200
_MOST_TABLES, _MOST_HASHES = 24, 48
_CSS = {"null": "null", "free": "free", "cached": "cached", "in use": "used", "shared": "used shared"}


def kv_memory(view: StepView, selection: Selection) -> Html:
    """Draw the pool as it stands when the step's plan is complete and its forward pass runs."""
    alone = selection.view == "kv"
    state = view.planned
    return panel(
        "kv",
        "KV memory",
        f"a block is a piece of memory for the keys and values of {count(state.block_size, 'token')}",
        _legend(state),
        _pool(view, selection, alone),
        label(join([el("code", "", "free_block_queue"), ": the first is handed out next, freed ones join at the end"])),
        _queue(state, selection, *(_QUEUE_ALONE if alone else _QUEUE)),
        _tables(state, selection, alone),
        _prefix_cache(state, selection) if alone else None,
        _detail(state, selection),
    )


# --- the pool ---------------------------------------------------------------------------------------------------


def _legend(state: State) -> Html:
    counts, held = state.pool.counts(), len(state.held_blocks)
    in_use = counts["in use"] + counts["shared"]
    entries = [
        ("used", f"{in_use:,} in use", "held by a request, in the request's colour"),
        ("shared", f"{counts['shared']:,} of them shared", "the badge counts the requests that read it"),
        (
            "cached",
            f"{counts['cached']:,} cached",
            "free, still cached: its content can be found until it is handed out",
        ),
        ("free", f"{counts['free']:,} empty", "free, and without content that could be found"),
        ("new", "new in this step", "handed out by this step's plan"),
    ]
    if held:
        entries.insert(
            2, ("used", f"{held:,} of them held", "their request has ended, a connector still works on them")
        )
    return el(
        "ul",
        "legend",
        *(el("li", "", el("i", f"swatch {css}"), text, data_tip=tip) for css, text, tip in entries),
        **{f"data_{kind.replace(' ', '_')}": number for kind, number in counts.items()},
    )


def _pool(view: StepView, selection: Selection, alone: bool) -> Html:
    pool, changed = view.planned.pool, _changed(view.events)
    if pool.num_blocks <= (_MOST_SINGLE_ALONE if alone else _MOST_SINGLE):
        dense = not alone and pool.num_blocks > _MOST_NUMBERED
        cells = (_cell(block, view.planned, selection, changed, dense) for block in pool.blocks())
        return el("div", "pool dense" if dense else "pool", *cells)
    size = _WINDOW_ALONE if alone else _WINDOW
    first = _window_start(pool, selection, changed, size)
    window = range(first, min(first + size, pool.num_blocks))
    where = f"blocks {first:,} to {window[-1]:,} of {pool.num_blocks:,}: click above to look elsewhere"
    cells = (_cell(pool.block(block_id), view.planned, selection, changed, False) for block_id in window)
    return join([el("div", "tiles", *_tiles(pool, window)), label(where), el("div", "pool", *cells)])


def _changed(events: Sequence[ev.Event]) -> dict[int, str]:
    """Blocks that this step's plan handed out or shared, with the words for it."""
    changed: dict[int, str] = {}
    for event in events:
        if isinstance(event, ev.KVAllocated):
            changed.update(dict.fromkeys(event.block_ids, "handed out in this step"))
            changed.update(
                dict.fromkeys(event.evicted_block_ids, "handed out in this step: what it had cached is evicted")
            )
        elif isinstance(event, ev.KVTouched):
            changed.update(dict.fromkeys(event.block_ids, "found in the prefix cache in this step"))
    changed.pop(NULL_BLOCK, None)
    return changed


def _cell(block: BlockState, state: State, selection: Selection, changed: dict[int, str], dense: bool) -> Html:
    css = f"block {_CSS[block.kind]}"
    owners = block.owners or ((block.origin.request,) if block.origin and block.kind == "cached" else ())
    if owners:
        css += f" {request_class(owners[0])}"
    if block.block_id in changed and block.owners:
        css += " new"
    if selection.request is not None and selection.request in block.owners:
        css += " mine"
    if selection.block == block.block_id:
        css += " selected"
    shared = block.ref_count if block.kind == "shared" else None
    return el(
        "button",
        css,
        el("span", "", shared) if dense and shared else None,
        None if dense else el("span", "", "∅" if block.kind == "null" else block.block_id),
        None if dense or not shared else el("sup", "badge", shared),
        style=_stripes(block.owners) if len(block.owners) > 1 else None,
        data_act=f"block:{block.block_id}",
        data_block=block.block_id,
        data_state=block.kind,
        data_refs=block.ref_count,
        data_tip=_tip(block, state, changed),
    )


def _stripes(owners: Sequence[int]) -> str:
    """One stripe per request that holds the block, four at most."""
    shown = owners[:4]
    width = 100 / len(shown)
    stops = (f"{request_colour(o)} {i * width:.0f}% {(i + 1) * width:.0f}%" for i, o in enumerate(shown))
    return f"background:linear-gradient(105deg,{','.join(stops)})"


def _tip(block: BlockState, state: State, changed: dict[int, str]) -> str:
    words = [f"block {block.block_id}: {_what(block, state)}"]
    if block.hash:
        words.append(f"hash {block.hash[:10]}…")
    if block.block_id in changed and block.owners:
        words.append(changed[block.block_id])
    return " · ".join(words)


def _what(block: BlockState, state: State) -> str:
    names = [_holder(state.requests[owner]) for owner in block.owners]
    match block.kind:
        case "null":
            return "the null block, which stands for no block and is never handed out"
        case "free":
            return "empty"
        case "cached":
            source = f", computed for r{block.origin.request}" if block.origin else ""
            return f"free, still cached{source}"
        case "in use":
            return f"in use by {names[0] if names else 'a request'}"
        case "shared":
            return f"shared by {', '.join(names)} (reference count {block.ref_count})"


def _holder(request: RequestState) -> str:
    if not (request.sending or request.receiving):
        return request.name
    work = f"being {work_on_blocks(sending=request.sending, receiving=request.receiving)}"
    return (
        f"{request.name} (it has ended, but the block is still {work})" if request.ended else f"{request.name} ({work})"
    )


def _tiles(pool: PoolState, window: range) -> list[Html]:
    size = -(-pool.num_blocks // _TILES)
    return [
        _tile(pool, range(first, min(first + size, pool.num_blocks)), window)
        for first in range(0, pool.num_blocks, size)
    ]


def _tile(pool: PoolState, blocks: range, window: range) -> Html:
    """Filled from below: the share in use, in the colour of whoever holds most of it; then the share cached."""
    span = slice(blocks.start, blocks.stop)
    ref_counts = pool.ref_counts[span]
    used = sum(map(bool, ref_counts))
    cached = sum(1 for has, refs in zip(pool.hashes[span], ref_counts, strict=True) if has is not None and not refs)
    holders = Counter(owners[0] for owners in pool.owners[span] if owners)
    high, higher = 100 * used / len(blocks), 100 * (used + cached) / len(blocks)
    colour = request_colour(holders.most_common(1)[0][0]) if holders else "transparent"
    fill = f"linear-gradient(to top,{colour} {high:.0f}%,var(--cached) {high:.0f}% {higher:.0f}%,transparent 0)"
    shown = window.start < blocks.stop and blocks.start < window.stop
    return el(
        "button",
        "tile shown" if shown else "tile",
        style=f"background-image:{fill}",
        data_act=f"block:{blocks.start}",
        data_used=used,
        data_cached=cached,
        data_tip=f"blocks {blocks.start:,} to {blocks.stop - 1:,}: {used} in use, {cached} cached",
    )


def _window_start(pool: PoolState, selection: Selection, changed: dict[int, str], size: int) -> int:
    """The window shows the selected block, else what this step changed, else the start."""
    focus = selection.block if selection.block is not None else min(changed, default=0)
    return max(0, min(focus - focus % 16, pool.num_blocks - size))


# --- the queue, the table, one block ----------------------------------------------------------------------------


def _queue(state: State, selection: Selection, head: int, tail: int) -> Html:
    """`free_block_queue` as the doubly linked list it is; its middle is counted."""
    queue = state.pool.free_block_queue
    if not queue:
        return empty("No block: every one is in use, so the next request for one must preempt.")
    shown = list(islice(queue, head))
    behind = list(islice(reversed(queue), min(tail, len(queue) - len(shown))))[::-1]
    hidden = len(queue) - len(shown) - len(behind)
    nodes = [_node(block_id, i, state, selection) for i, block_id in enumerate(shown)]
    if hidden:
        nodes.append(el("span", "elided", f"… {hidden:,} …"))
    nodes += [_node(block_id, len(shown) + hidden + i, state, selection) for i, block_id in enumerate(behind)]
    return el("div", "queue", *nodes, data_length=len(queue))


def _node(block_id: int, index: int | None, state: State, selection: Selection) -> Html:
    block = state.pool.block(block_id)
    css = f"node {_CSS[block.kind]}"
    if block.origin:
        css += f" {request_class(block.origin.request)}"
    if selection.block == block_id:
        css += " selected"
    return el(
        "button",
        css,
        block_id,
        data_act=f"block:{block_id}",
        data_block=block_id,
        data_queue=index,
        data_tip=_tip(block, state, {}) + ("" if index is None else f" · place {index} in the queue"),
    )


def _tables(state: State, selection: Selection, alone: bool) -> Html | None:
    """The block table of the selected request; with the page to itself, of every request that holds blocks."""
    if not alone:
        request = state.requests.get(selection.request) if selection.request is not None else None
        return _table(request, state, selection, _TABLE) if request else None
    holders = sorted(state.holders, key=lambda request: (request.serial != selection.request, request.serial))
    chosen = holders[:_MOST_TABLES]
    if not chosen:
        return None
    title = label("block tables: the blocks of each request, in the order of its tokens")
    return join([title, *(_table(request, state, selection, _TABLE_ALONE) for request in chosen)])


def _table(request: RequestState, state: State, selection: Selection, limit: int) -> Html:
    tables = request.block_ids
    selected = selection.request == request.serial
    title = join(["block table of " if limit == _TABLE else None, chip(request.serial, selected=selected)])
    if not any(tables):
        why = "it has finished" if request.finished else "it has no blocks yet"
        return el("div", "table", label(title), el("span", "why", f"empty: {why}"), data_table=request.serial)
    shared = sum(state.pool.ref_counts[block_id] > 1 for table in tables for block_id in table)
    note = f"{count(shared, 'block')} shared: computed once, read by several requests" if shared else None
    if request.sending or request.receiving:
        note = f"still being {work_on_blocks(sending=request.sending, receiving=request.receiving)}"
    return el(
        "div",
        f"table {request_class(request.serial)}",
        label(title),
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
        "∅" if block.kind == "null" else block.block_id,
        data_act=f"block:{block.block_id}",
        data_block=block.block_id,
        data_entry=index,
        data_of=request.serial,
        data_tip=f"entry {index} → {_tip(block, state, {})}",
    )


def _prefix_cache(state: State, selection: Selection) -> Html:
    """`cached_block_hash_to_block`: which contents can be found, and in which block."""
    cache = state.pool.cached_block_hash_to_block
    title = label(
        join(
            [
                el("code", "", "cached_block_hash_to_block"),
                f": {count(len(cache), 'content')} that a new request may share",
            ]
        )
    )
    shown = [
        el(
            "span",
            "hash",
            el("code", "", f"{block_hash[:6]}…"),
            *(_node(block_id, None, state, selection) for block_id in block_ids),
            data_hash=block_hash,
        )
        for block_hash, block_ids in islice(cache.items(), _MOST_HASHES)
    ]
    if len(cache) > _MOST_HASHES:
        shown.append(el("span", "elided", f"… {len(cache) - _MOST_HASHES:,} more"))
    return join([title, el("div", "hashes", *(shown or [empty("Empty: no block is full yet, or caching is off.")]))])


def _detail(state: State, selection: Selection) -> Html | None:
    """What is known of the selected block, in words."""
    if selection.block is None or not 0 <= selection.block < state.pool.num_blocks:
        return None
    block = state.pool.block(selection.block)
    lines: list[str | Html] = [el("b", "", f"Block {block.block_id}"), f" is {_what(block, state)}."]
    if block.hash:
        lines += [" Its hash is ", el("code", "", f"{block.hash[:16]}…"), ", a digest of all tokens up to its end."]
    tokens = state.block_token_ids(block.block_id)
    if tokens:
        text = join(state.piece_text(token_id) for token_id in tokens)
        held = "holds" if block.ref_count else "still holds"
        lines += [f" It {held} {count(len(tokens), 'token')}: ", el("q", "", text)]
    close = el("button", "close", "×", data_act="block:none", aria_label="close")
    return el("div", "detail", close, el("p", "", *lines), data_detail=block.block_id)
