"""KV memory: every physical block of the pool, the order in which free ones will be handed out, the block tables."""

from __future__ import annotations

from itertools import islice

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.style import Style
from rich.table import Table
from rich.text import Text

from engine.trace import events as ev
from sim.pool import BlockState
from sim.state import RequestState, State
from sim.timeline import StepView
from viz.explain import work_on_blocks
from viz.terminal.words import chip, counted, filled_style, line_style, listed, panel

_PER_ROW = 16
_MOST_ROWS = 16
_QUEUE_HEAD, _QUEUE_TAIL = 7, 4
_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def kv_memory(view: StepView) -> RenderableType:
    """Draw the pool as the forward pass of a step finds it."""
    state = view.planned
    counts = state.pool.counts()
    subtitle = listed(
        [
            counted(state.pool.num_blocks, "block"),
            f"{counts['in use'] + counts['shared']:,} in use",
            f"{counts['shared']:,} of them shared" if counts["shared"] else "",
            f"{len(state.held_blocks):,} held for requests that have ended" if state.held_blocks else "",
            f"{counts['cached']:,} free, still cached" if counts["cached"] else "",
            f"{counts['free']:,} empty",
            "1 null",
        ]
    )
    fresh = {block_id for event in view.events if isinstance(event, ev.KVAllocated) for block_id in event.block_ids}
    return panel("KV memory", subtitle, _Pool(state, fresh), _queue(state), _tables(state))


class _Pool:
    """The grid of blocks. Without colour, brackets tell the kinds apart; with it, the colour names the owner too."""

    def __init__(self, state: State, fresh: set[int]) -> None:
        self._state = state
        self._fresh = fresh

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plain = console.no_color or console.color_system is None
        blocks = self._state.pool.blocks()
        width = max(2, len(str(len(blocks) - 1)))
        per_row = max(8, min(_PER_ROW, options.max_width // (width + 4) // 8 * 8))
        rows = [blocks[start : start + per_row] for start in range(0, len(blocks), per_row)]
        told = rows
        if len(rows) > _MOST_ROWS:
            # In a big pool the rows in which every block is empty say nothing: they are counted.
            told = [row for row in rows if any(block.kind != "free" for block in row)][:_MOST_ROWS]
        left_out = len(blocks) - sum(map(len, told))
        for row in told:
            yield Text.assemble(*(self._cell(block, width, plain) for block in row))
        if left_out:
            yield Text(f"… {counted(left_out, 'block')} not drawn, from {self._first_left_out(rows, told)} on", "dim")
        yield _legend(plain)

    @staticmethod
    def _first_left_out(rows: list[list[BlockState]], told: list[list[BlockState]]) -> int:
        return next(row[0].block_id for row in rows if row not in told)

    def _cell(self, block: BlockState, width: int, plain: bool) -> Text:
        name = "∅" if block.kind == "null" else str(block.block_id)
        mark = "+" if block.block_id in self._fresh else ""
        body, style = f" {name:>{width}} ", Style.parse("dim")
        if block.kind in ("in use", "shared"):
            body = f"[{name:>{width}}]" if plain else body
            style = filled_style(block.owners[0]) if block.owners else Style(reverse=True)
            mark = str(block.ref_count).translate(_SUPERSCRIPT) if block.kind == "shared" else mark
        elif block.kind == "cached":
            body = f"({name:>{width}})"
            style = line_style(block.origin.request) if block.origin else Style()
        return Text.assemble((body, style), (f"{mark:<2}"[:2], "bold"))


def _legend(plain: bool) -> Text:
    in_use = "[7] in use" if plain else "coloured: in use"
    marks = (in_use, "² by two", "+ new", "(7) free but cached", "7 empty", "∅ null block")
    return Text(f"how a block 7 is marked: {' · '.join(marks)}", "dim")


def _queue(state: State) -> Text:
    queue = state.pool.free_block_queue
    head = list(islice(queue, _QUEUE_HEAD))
    ids = [_queued(state, block_id) for block_id in head]
    rest = len(queue) - len(head)
    if rest > 0:
        tail = list(islice(reversed(queue), min(rest, _QUEUE_TAIL)))[::-1]
        ids += ["…"] * (rest > len(tail)) + [_queued(state, block_id) for block_id in tail]
    return Text.assemble(
        ("\nfree_block_queue, left goes next  ", "dim"), " ⇄ ".join(ids) or "no block: every one is in use"
    )


def _queued(state: State, block_id: int) -> str:
    return f"({block_id})" if state.pool.hashes[block_id] is not None else str(block_id)


def _tables(state: State) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    holders = state.holders
    for place, request in enumerate(holders):
        for group in range(len(request.block_ids)):
            label = "block tables" if place == group == 0 else ""
            table.add_row(label, chip(request.serial), _block_table(state, request, group))
    return table if holders else Group()


def _block_table(state: State, request: RequestState, group: int) -> Text:
    text, size = Text(), state.block_size
    num_filled = max(request.num_computed_tokens, request.num_hit_tokens)
    for place, block_id in enumerate(request.block_ids[group]):
        ref_count = state.pool.ref_counts[block_id]
        shared = str(ref_count).translate(_SUPERSCRIPT) if ref_count > 1 else ""
        filled = min(size, max(0, num_filled - place * size))
        text.append(f"{block_id or '∅'}{shared}", line_style(request.serial) if filled == size else "")
        text.append(f" {filled}/{size}" if filled < size else "", "dim").append("  ")
    if request.sending or request.receiving:
        text.append(f"being {work_on_blocks(sending=request.sending, receiving=request.receiving)}", "dim")
    return text
