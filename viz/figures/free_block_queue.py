"""`free_block_queue` as the doubly linked list it is, and what the step took out of it and put back.

::

    taken in this step      r2 ← [11] [6] [5]
    head ⇄ 4 ⇄ 3 ⇄ … 27 more … ⇄ 9 ⇄ 8 ⇄ 7 ⇄ tail
    joined in this step     r1 → [9] [8] [7]
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from sim.pool import PoolState
from sim.state import State
from viz.cut import UNPLANNED
from viz.figures.block import node
from viz.figures.block_changes import BlockChanges, Move
from viz.figures.html import Child, Html, el, join
from viz.figures.parts import Selection, chip, count, empty, label

#: Nodes drawn at the front and at the tail; those between are counted.
_ENDS, _ENDS_ALONE = (6, 3), (30, 14)
#: Moves of one kind, and blocks of a move.
_MOST_MOVES, _MOST_MOVED = 4, 14

_HEAD = "the fake head: it is no block. With a node at either end, no operation has to ask whether the list is empty"
_TAIL = "the fake tail: it is no block. A block that nobody uses any more is put right before it"
_REVERSED = (
    "the last block of its table first: of a text, the beginning is what others are likeliest to share, so it is"
    " handed out last"
)


def free_block_queue(state: State, selection: Selection) -> Html:
    """Draw its two ends, beside other panels."""
    title = label(join([_NAME, ": the first is handed out next, freed ones join at the end"]))
    queue = state.pool.free_block_queue
    if not queue:
        return join([title, _used_up()])
    return join([title, el("div", "queue", *_nodes(state, selection, {}, *_ENDS), data_length=len(queue))])


def linked_free_block_queue(state: State, selection: Selection, changes: BlockChanges) -> Html:
    """Draw it with the page to itself: the links, the sentinels, and the moves of the step."""
    pool = state.pool
    free = count(len(pool.free_block_queue), "free block")
    title = label(join([_NAME, f": {free}. The front is handed out next; a block nobody uses any more joins the tail"]))
    joined = {block_id: "joined the tail in this step" for move in changes.joined for block_id in move.block_ids}
    nodes = _nodes(state, selection, joined, *_ENDS_ALONE) if pool.free_block_queue else [_used_up()]
    ends = (el("span", "sentinel", "fake head", data_tip=_HEAD), el("span", "sentinel", "fake tail", data_tip=_TAIL))
    return join(
        [
            title,
            _moves("taken from the front", "taken", changes.taken, state, selection),
            _moves("taken out of the middle: a prefix hit revives them", "revived", changes.revived, state, selection),
            el("div", "queue linked", ends[0], *nodes, ends[1], data_length=len(pool.free_block_queue)),
            _moves("joined the tail", "joined", changes.joined, state, selection),
            _moves("will join the tail when this step ends", "joining", changes.joining, state, selection),
            _still(changes),
        ]
    )


_NAME = el("code", "", "free_block_queue")


def _used_up() -> Html:
    return empty("No block: every one is in use, so the next request for one must preempt.")


def _nodes(state: State, selection: Selection, joined: dict[int, str], front: int, tail: int) -> list[Html]:
    shown, hidden, behind = _two_ends(state.pool, front, tail)
    first_behind = len(shown) + hidden
    nodes = list(_places(shown, 0, state, selection, joined))
    if hidden:
        nodes.append(el("span", "elided", f"… {hidden:,} …"))
    return [*nodes, *_places(behind, first_behind, state, selection, joined)]


def _two_ends(pool: PoolState, front: int, tail: int) -> tuple[list[int], int, list[int]]:
    """The first blocks of the queue, how many lie between, and the last ones."""
    queue = pool.free_block_queue
    if len(queue) <= front + tail:
        return list(queue), 0, []
    return list(islice(queue, front)), len(queue) - front - tail, list(islice(reversed(queue), tail))[::-1]


def _places(
    block_ids: Iterable[int], first: int, state: State, selection: Selection, joined: dict[int, str]
) -> Iterable[Html]:
    for place, block_id in enumerate(block_ids, first):
        more = (f"place {place:,} in the queue", *([joined[block_id]] if block_id in joined else []))
        css = "joined" if block_id in joined else ""
        yield node(block_id, state, selection, *more, css=css, queue=place)


def _moves(title: str, kind: str, moves: list[Move], state: State, selection: Selection) -> Html | None:
    """What went one way in this step, a line for each request."""
    if not moves:
        return None
    lines = [_move(move, kind, state, selection) for move in moves[:_MOST_MOVES]]
    if len(moves) > _MOST_MOVES:
        lines.append(el("span", "elided", f"… and those of {count(len(moves) - _MOST_MOVES, 'other')}"))
    return el("div", f"moves {kind}", el("span", "way", title), el("div", "moved", *lines), data_moves=kind)


def _move(move: Move, kind: str, state: State, selection: Selection) -> Html:
    css = "went" if kind in ("taken", "revived") else "came"
    nodes = [
        node(b, state, selection, *(["its cached content is lost"] if b in move.evicted else []), css=css)
        for b in move.block_ids[:_MOST_MOVED]
    ]
    if len(move.block_ids) > _MOST_MOVED:
        nodes.append(el("span", "elided", f"… {len(move.block_ids) - _MOST_MOVED:,} more"))
    who = chip(move.request, selected=selection.request == move.request)
    note = el("em", "", _note(move, kind))
    return el("span", "move", who, *nodes, note, data_mover=move.request, data_moved=len(move.block_ids))


def _note(move: Move, kind: str) -> Child:
    if kind == "taken" and move.evicted:
        if len(move.block_ids) == 1:
            return "what it had cached is evicted"
        return f"what {len(move.evicted):,} of them had cached is evicted"
    if kind in ("taken", "revived"):
        return None
    if move.passed:
        return "its sliding window has passed them"
    why = "it is preempted" if move.why == "preempted" else "it has ended" if kind == "joining" else move.why
    return f"{why}: {_REVERSED}" if len(move.block_ids) > 1 else why


def _still(changes: BlockChanges) -> Html | None:
    if changes.taken or changes.revived or changes.joined or changes.joining:
        return None
    quiet = "Nothing is taken and nothing joins in this step: every request has room in its blocks."
    return el("p", "still", quiet if changes.planned else UNPLANNED)
