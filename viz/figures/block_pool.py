"""The pool of blocks: one square per block, or, of a large pool, tiles of many blocks with a way into each.

::

    200,000 blocks    256 tiles of 782 blocks          click one
      12,512 to 13,293   49 tiles of 16 blocks         click one
        12,800 to 12,895   96 blocks, one square each
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import compress
from operator import itemgetter
from typing import NamedTuple

from sim.pool import BlockState, PoolState
from sim.state import State
from viz.figures.block import CSS, colour_class, name, stripes, tip
from viz.figures.block_changes import BlockChanges
from viz.figures.html import Child, Html, el
from viz.figures.parts import Selection, count, label
from viz.theme import request_class, request_colour

#: A larger pool is drawn as tiles of many blocks, with a window onto single ones.
_MOST_SINGLE, _MOST_SINGLE_ALONE = 400, 1000
#: Tiles of the whole pool and of a part of it; single blocks.
_TILES, _TILES_ALONE = (160, 48), (256, 64)
_WINDOW, _WINDOW_ALONE = 64, 96
#: Tiles and windows begin at multiples of so many blocks, so that they stay where they are from step to step.
_ALIGNED = 16

#: Beside the other panels, more blocks than this are drawn small, without their numbers.
_MOST_NUMBERED = 130


def block_pool(state: State, selection: Selection, changes: BlockChanges, *, alone: bool) -> Html:
    """Draw every block, or the way from the whole pool to some of its blocks."""
    pool, changed = state.pool, changes.words()
    if pool.num_blocks <= (_MOST_SINGLE_ALONE if alone else _MOST_SINGLE):
        dense = not alone and pool.num_blocks > _MOST_NUMBERED
        cells = (_cell(block, state, selection, changed, dense) for block in pool.blocks())
        return el("div", "pool dense" if dense else "pool", *cells)
    marks = _Marks.of(state, selection, changed)
    window, levels = _zoom(pool, marks.focus, *(_TILES_ALONE if alone else _TILES), _WINDOW_ALONE if alone else _WINDOW)
    parts = [part for level in levels for part in _level(level, pool, marks)]
    cells = (_cell(pool.block(block_id), state, selection, changed, False) for block_id in window)
    parts += [label(f"blocks {_span(window)}, one by one"), el("div", "pool", *cells)]
    return el("div", "zoom", *parts)


# --- one block --------------------------------------------------------------------------------------------------


def _cell(block: BlockState, state: State, selection: Selection, changed: dict[int, str], dense: bool) -> Html:
    css = f"block {CSS[block.kind]} {colour_class(block) or ''}".rstrip()
    new = block.block_id in changed and bool(block.owners)
    if new:
        css += " new"
    if selection.request is not None and selection.request in block.owners:
        css += " mine"
    if selection.block == block.block_id:
        css += " selected"
    return el(
        "button",
        css,
        *_written_on(block, dense),
        style=stripes(block.owners),
        data_act=f"block:{block.block_id}",
        data_block=block.block_id,
        data_state=block.kind,
        data_refs=block.ref_count,
        data_tip=tip(block, state, *([changed[block.block_id]] if new else [])),
    )


def _written_on(block: BlockState, dense: bool) -> list[Child]:
    if block.kind != "shared":
        return [] if dense else [name(block)]
    if dense:
        return [el("span", "", block.ref_count)]
    return [el("span", "", name(block)), el("sup", "badge", block.ref_count)]


# --- many blocks ------------------------------------------------------------------------------------------------


class _Level(NamedTuple):
    """A part of the pool, cut into tiles; the next level shows what lies in `inside`."""

    part: range
    per_tile: int
    inside: range


class _Marks(NamedTuple):
    """Blocks that are to be found among many."""

    focus: int
    selected: int | None
    changed: list[int]
    """Ascending, as the next are."""
    mine: list[int]
    """Those of the selected request."""
    request: int | None

    @classmethod
    def of(cls, state: State, selection: Selection, changed: dict[int, str]) -> _Marks:
        """Looks at the selected block, else at what this step changed, else at the first block in use."""
        pool = state.pool
        selected = selection.block if selection.block in range(pool.num_blocks) else None
        request = state.requests.get(selection.request) if selection.request is not None else None
        mine = [block_id for table in request.block_ids for block_id in table] if request else []
        in_use = next(compress(range(pool.num_blocks), pool.ref_counts), 0)
        focus = selected if selected is not None else min(changed, default=in_use)
        return cls(focus, selected, sorted(changed), sorted(mine), request.serial if request else None)


def _zoom(pool: PoolState, focus: int, most: int, most_inside: int, size: int) -> tuple[range, list[_Level]]:
    """The single blocks to show, and the levels of tiles above them; on each, the tile with the focus is entered."""
    levels: list[_Level] = []
    part = range(pool.num_blocks)
    while len(part) > size:
        per_tile = -(-len(part) // most)
        if levels:
            per_tile = -(-per_tile // _ALIGNED) * _ALIGNED
        most = most_inside
        if per_tile <= size:
            start = max(part.start, min(focus - (focus - part.start) % per_tile, part.stop - size))
            inside = range(start, min(start + size, part.stop))
        else:
            start = focus - (focus - part.start) % per_tile
            inside = range(start, min(start + per_tile, part.stop))
        levels.append(_Level(part, per_tile, inside))
        part = inside
    return part, levels


def _level(level: _Level, pool: PoolState, marks: _Marks) -> Iterator[Html]:
    whole = len(level.part) == pool.num_blocks
    words = f"all {pool.num_blocks:,} blocks" if whole else f"blocks {_span(level.part)}"
    yield label(f"{words}, {count(level.per_tile, 'block')} a tile: click one to look inside")
    tiles = (
        _tile(range(first, min(first + level.per_tile, level.part.stop)), level, pool, marks)
        for first in range(level.part.start, level.part.stop, level.per_tile)
    )
    yield el("div", "tiles" if whole else "tiles inner", *tiles, data_level=level.per_tile)


def _tile(blocks: range, level: _Level, pool: PoolState, marks: _Marks) -> Html:
    """Filled from below: the share in use, in the colour of whoever holds most of it; then the share cached."""
    counts = pool.counts(blocks)
    used = counts["in use"] + counts["shared"]
    holders = Counter(map(itemgetter(0), filter(None, pool.owners[blocks.start : blocks.stop])))
    high, higher = 100 * used / len(blocks), 100 * (used + counts["cached"]) / len(blocks)
    colour = request_colour(holders.most_common(1)[0][0]) if holders else "transparent"
    fill = f"linear-gradient(to top,{colour} {high:.0f}%,var(--cached) {high:.0f}% {higher:.0f}%,transparent 0)"
    changed, mine = _among(marks.changed, blocks), _among(marks.mine, blocks)
    css = ["tile"]
    if level.inside.start < blocks.stop and blocks.start < level.inside.stop:
        css.append("shown")
    if changed:
        css.append("new")
    if mine and marks.request is not None:
        css += ["mine", request_class(marks.request)]
    if marks.selected is not None and marks.selected in blocks:
        css.append("selected")
    said = [f"{used:,} in use", f"{counts['cached']:,} cached", f"{counts['free']:,} empty"]
    if changed:
        said.append(f"{len(changed):,} changed by this step")
    if mine:
        said.append(f"{len(mine):,} of r{marks.request}")
    return el(
        "button",
        " ".join(css),
        style=f"background-image:{fill}",
        data_act=f"block:{(changed or mine or [blocks.start])[0]}",
        data_tile=blocks.start,
        data_used=used,
        data_cached=counts["cached"],
        data_changed=len(changed),
        data_mine=len(mine),
        data_tip=f"blocks {_span(blocks)}: {', '.join(said)}",
    )


def _among(block_ids: list[int], blocks: range) -> list[int]:
    return block_ids[bisect_left(block_ids, blocks.start) : bisect_left(block_ids, blocks.stop)]


def _span(blocks: range) -> str:
    return f"{blocks.start:,} to {blocks.stop - 1:,}"
