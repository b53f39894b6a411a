"""What a step did to blocks: which it took out of `free_block_queue`, which it put back, and for whom."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine.trace import events as ev
from sim.pool import NULL_BLOCK
from sim.timeline import StepView
from viz.cut import is_planned


class Move(NamedTuple):
    """Blocks that moved together, in the order in which they did."""

    request: int
    block_ids: list[int]
    evicted: list[int]
    """Those whose cached content was lost by it."""
    why: str = ""
    passed: bool = False
    """A sliding window has passed them: the request goes on."""


class BlockChanges(NamedTuple):
    """The moves of a step. Its plan is made before its forward pass runs, what it ends comes after."""

    taken: list[Move]
    """From the front of the queue."""
    revived: list[Move]
    """From the middle of the queue, by a prefix hit."""
    shared: list[int]
    """All blocks that a prefix hit found, whether they were free or in use."""
    joined: list[Move]
    """At the tail of the queue, while the plan was made."""
    joining: list[Move]
    """At the tail of the queue, when the step ends."""
    planned: bool = False
    """Whether the trace holds the whole plan of the step."""

    def words(self) -> dict[int, str]:
        """What the plan did to a block, by block."""
        said = {block_id: "handed out in this step" for move in self.taken for block_id in move.block_ids}
        for move in self.taken:
            said.update(dict.fromkeys(move.evicted, "handed out in this step: what it had cached is evicted"))
        said.update(dict.fromkeys(self.shared, "found in the prefix cache in this step"))
        return said


def block_changes(view: StepView) -> BlockChanges:
    """What the events of a step say."""
    events = view.events
    end = next((i for i, event in enumerate(events) if isinstance(event, ev.StepScheduled)), len(events))
    plan, update = events[:end], events[end:]
    touched = [event for event in plan if isinstance(event, ev.KVTouched)]
    shared = dict.fromkeys(block_id for event in touched for block_id in event.block_ids if block_id != NULL_BLOCK)
    return BlockChanges(
        taken=[
            Move(event.request, event.block_ids, event.evicted_block_ids)
            for event in plan
            if isinstance(event, ev.KVAllocated)
        ],
        revived=list(_revived(touched)),
        shared=list(shared),
        joined=list(_joined(plan)),
        joining=list(_joined(update)),
        planned=is_planned(view),
    )


def _revived(touched: Iterable[ev.KVTouched]) -> Iterable[Move]:
    for event in touched:
        block_ids = [
            block_id
            for block_id, ref_count in zip(event.block_ids, event.ref_counts, strict=True)
            if ref_count == 1 and block_id != NULL_BLOCK
        ]
        if block_ids:
            yield Move(event.request, block_ids, [])


def _joined(events: Sequence[ev.Event]) -> Iterable[Move]:
    for event in events:
        if not isinstance(event, ev.KVFreed):
            continue
        free = [b for b, ref_count in zip(event.block_ids, event.ref_counts, strict=True) if ref_count == 0]
        if free:
            yield Move(event.request, free, [], event.why, event.by_window)
