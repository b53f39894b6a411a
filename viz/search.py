"""The search field: what a person types is a request (`r3`), a block (`block 12`), or a question of `sim.query`.

A request is found where it got tokens, a block where something happened to it, a question where it holds.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, groupby, takewhile
from typing import NamedTuple

from engine.errors import QueryError
from sim.query.changes import Change, block_changes
from sim.query.find import candidates, steps_where
from sim.query.names import NAMES
from sim.query.predicate import Predicate
from sim.timeline import Timeline

_BLOCK = re.compile(r"block\s+([0-9]{1,9})")
_REQUEST = re.compile(r"r([0-9]{1,9})")
#: Events that one look decodes at most, which takes less than a second; the next look goes on from there.
MOST_EVENTS = 150_000


class Found(NamedTuple):
    """Where a look from one step ended."""

    step: int | None
    """What was looked for is there."""
    given_up_at: int | None = None
    """It is in no step up to this one, and behind it nobody has looked yet."""


@dataclass(frozen=True)
class Search:
    """What is looked for in a trace: a request, a block, or where a question holds."""

    text: str
    timeline: Timeline
    request: int | None = None
    block: int | None = None
    predicate: Predicate | None = None

    @cached_property
    def steps(self) -> tuple[int, ...] | None:
        """All steps that it finds, in order; None where finding them all takes too long."""
        timeline, predicate = self.timeline, self.predicate
        if self.request is not None:
            return tuple(timeline.life_lines[self.request].scheduled)
        if predicate is not None:
            wanted = candidates(timeline, predicate)
            if predicate.is_of_rows and _affordable(timeline, wanted) < len(wanted):
                return None
            return tuple(steps_where(timeline, predicate, wanted))
        if len(timeline.events) > MOST_EVENTS:
            return None
        return tuple(sorted({step_of(timeline, change) for change in self._changes(0, forward=True)}))

    def nearest(self, step: int, *, forward: bool) -> Found:
        """The next step that it finds, or the one before."""
        if self.steps is not None:
            return Found(_neighbour(self.steps, step, forward=forward))
        if self.predicate is None:
            changes = nearest_changes(self.timeline, step, self._changes, forward=forward)
            return Found(step_of(self.timeline, changes[0]) if changes else None)
        wanted = _beyond(candidates(self.timeline, self.predicate), step, forward=forward)
        affordable = wanted[: _affordable(self.timeline, wanted)]
        found = next(steps_where(self.timeline, self.predicate, affordable), None)
        return Found(found, affordable[-1] if found is None and len(affordable) < len(wanted) else None)

    def _changes(self, position: int, *, forward: bool) -> Iterator[Change]:
        assert self.block is not None
        return block_changes(self.timeline, self.block, position, "after" if forward else "before")


@lru_cache(maxsize=32)
def search(timeline: Timeline, text: str) -> Search:
    """Read what a person has typed.

    Raises:
        QueryError: in one sentence, what is wrong with it and what is allowed.
    """
    text = text.strip()
    if block := _BLOCK.fullmatch(text):
        number, num_blocks = int(block[1]), timeline.header.kv_cache.num_gpu_blocks
        if number >= num_blocks:
            raise QueryError(f"There is no block {number}: the pool has blocks 0 to {num_blocks - 1}.")
        return Search(text, timeline, block=number)
    serial = _serial(timeline, text)
    if serial is not None:
        return Search(text, timeline, request=serial)
    if request := _REQUEST.fullmatch(text):
        last = max(timeline.life_lines, default=None)
        known = "no request at all" if last is None else f"r0 to r{last}"
        raise QueryError(f"There is no request r{request[1]}: this trace has {known}.")
    return Search(text, timeline, predicate=Predicate(text))


def nearest_changes(
    timeline: Timeline, step: int, changes: Callable[..., Iterable[Change]], *, forward: bool
) -> list[Change]:
    """The changes that the nearest other step shows, in the order in which they happened; none if there is no such.

    Args:
        timeline: of the trace.
        step: where to look from.
        changes: gives the changes from a position on, the nearest first: `changes(position, forward=True)`.
        forward: into the future.
    """
    span = timeline.span(step)
    # With several steps in flight, what belongs to the next may come before the end of this one.
    others = (
        change
        for change in changes(span.start if forward else span.end, forward=forward)
        if (step_of(timeline, change) > step if forward else step_of(timeline, change) < step)
    )
    _, nearest = next(groupby(others, key=lambda change: step_of(timeline, change)), (None, ()))
    return sorted(nearest, key=lambda change: change.position)


def step_of(timeline: Timeline, change: Change) -> int:
    """The step that shows a change: the one that its event belongs to; of what came between two steps, the later."""
    steps, own = timeline.steps, change.event.step
    place = bisect_left(steps, own)
    if steps[place : place + 1] == [own] and change.position < timeline.span(own).end:
        return own
    begun = bisect_right(steps, change.position, key=lambda step: timeline.span(step).start)
    return steps[min(begun, len(steps) - 1)]


def _serial(timeline: Timeline, word: str) -> int | None:
    """The request that a word means, under either of its names; what a question can name is no request."""
    if word in NAMES:
        return None
    if (short := _REQUEST.fullmatch(word)) and int(short[1]) in timeline.life_lines:
        return int(short[1])
    named = [serial for serial, life in timeline.life_lines.items() if life.request.request_id == word]
    return named[-1] if named else None


def _neighbour(steps: tuple[int, ...], step: int, *, forward: bool) -> int | None:
    place = bisect_right(steps, step) if forward else bisect_left(steps, step) - 1
    return steps[place] if 0 <= place < len(steps) else None


def _beyond(steps: list[int], step: int, *, forward: bool) -> list[int]:
    """Those after a step, or those before it with the nearest first."""
    return steps[bisect_right(steps, step) :] if forward else steps[: bisect_left(steps, step)][::-1]


def _affordable(timeline: Timeline, steps: list[int]) -> int:
    """How many of the steps, from the first on, one look may decode."""
    spans = map(timeline.span, steps)
    costs = accumulate(span.end - span.start for span in spans)
    return max(1, sum(1 for _ in takewhile(lambda cost: cost <= MOST_EVENTS, costs)))
