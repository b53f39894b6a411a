"""Which events concern a block, which a request, which a bitmask: what a question about one needs to look at."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.trace import events as ev

if TYPE_CHECKING:
    Positions = array[int]
else:  # up to Python 3.11 an array has no type of its elements when the program runs
    Positions = array


def _positions() -> Positions:
    return array("I")


@dataclass
class Touches:
    """Positions in the events of a trace, ascending."""

    blocks: dict[int, Positions] = field(default_factory=dict)
    """By block: where it was handed out, shared, freed, or got or lost its hash."""
    requests: dict[int, Positions] = field(default_factory=dict)
    """By serial: where it is named, but for the observations and the lists of a whole step."""
    resets: Positions = field(default_factory=_positions)
    """Where every block lost its hash at once."""
    masks: dict[str, int] = field(default_factory=dict)
    """By digest: where the words of a bitmask are."""

    def feed(self, position: int, event: ev.Event) -> None:
        """Take the event at a position."""
        note = _NOTES.get(type(event))
        if note is not None:
            note(self, position, event)

    def _request(self, position: int, event: Any) -> None:
        _append(self.requests, event.request, position)

    def _preempted(self, position: int, event: ev.SchedulePreempted) -> None:
        _append(self.requests, event.victim, position)
        if event.for_request != event.victim:
            _append(self.requests, event.for_request, position)

    def _aborted(self, position: int, event: ev.RequestAborted) -> None:
        for serial in event.requests:
            _append(self.requests, serial, position)

    def _blocks(self, position: int, event: Any) -> None:
        _append(self.requests, event.request, position)
        for block_id in event.block_ids:
            _append(self.blocks, block_id, position)

    def _uncached(self, position: int, event: ev.KVUncached) -> None:
        for block_id in event.block_ids:
            _append(self.blocks, block_id, position)

    def _reset(self, position: int, event: ev.CacheReset) -> None:
        if event.done:
            self.resets.append(position)

    def _masked(self, position: int, event: ev.GrammarBitmaskFilled) -> None:
        for digest in event.words:
            self.masks[digest] = position


def _append(by_number: dict[int, Positions], number: int, position: int) -> None:
    positions = by_number.get(number)
    if positions is None:
        positions = by_number[number] = _positions()
    positions.append(position)


_NOTES: dict[type[ev.Event], Callable[[Touches, int, Any], None]] = {
    ev.RequestAdded: Touches._request,
    ev.RequestAborted: Touches._aborted,
    ev.RequestStatusChanged: Touches._request,
    ev.RequestFinished: Touches._request,
    ev.GrammarRequested: Touches._request,
    ev.GrammarReady: Touches._request,
    ev.GrammarFailed: Touches._request,
    ev.GrammarBitmaskFilled: Touches._masked,
    ev.ScheduleRequest: Touches._request,
    ev.ScheduleSkipped: Touches._request,
    ev.SchedulePreempted: Touches._preempted,
    ev.UpdateRequest: Touches._request,
    ev.SpecVerdict: Touches._request,
    ev.KVLookup: Touches._request,
    ev.KVAllocated: Touches._blocks,
    ev.KVTouched: Touches._blocks,
    ev.KVCached: Touches._blocks,
    ev.KVUncached: Touches._uncached,
    ev.KVFreed: Touches._blocks,
    ev.KVHeld: Touches._request,
    ev.CacheReset: Touches._reset,
}
