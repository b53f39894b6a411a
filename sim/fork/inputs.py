"""The inputs that a recorded run had after the fork: when are they due in the other run?"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from engine.trace import events as ev
from engine.trace.file import AnyTrace
from sim.clock import VirtualClock

_Fed = (ev.RequestAdded, ev.RequestAborted, ev.GrammarReady, ev.GrammarFailed, ev.CacheResetAsked, ev.ConfigChanged)


class _Due(NamedTuple):
    event: ev.Event
    step: int
    """The step before whose planning it came."""


class PendingInputs:
    """What is still to come, in order.

    Args:
        trace: the recorded run.
        position: of its first event behind the fork.
        step: the first that is planned anew.
        clock: of the other run; None: an input comes before the same step as in the recorded run.
    """

    def __init__(self, trace: AnyTrace, position: int, step: int, clock: VirtualClock | None) -> None:
        self._clock = clock
        self._pending: deque[_Due] = deque()
        self._ahead = 0
        """Steps that the other run has skipped, because nothing was left to do until the next input."""
        self._stops: dict[int, int] = {}
        num_output_tokens: Counter[int] = Counter()
        for place, event in enumerate(trace.events):
            if isinstance(event, ev.UpdateRequest):
                num_output_tokens[event.request] += len(event.appended)
            if place < position:
                continue
            if isinstance(event, ev.ScheduleCalled):
                step = event.step + 1
            elif isinstance(event, ev.RequestAborted) and event.cause == ev.STOP_STRING:
                self._stops |= {serial: num_output_tokens[serial] for serial in event.requests}
            elif isinstance(event, _Fed):
                self._pending.append(_Due(event, step))

    def __bool__(self) -> bool:
        return bool(self._pending)

    def next_due(self, step: int) -> ev.Event | None:
        """The next input, if it is due before a step is planned; it stays until `take`."""
        if not self._pending:
            return None
        first = self._pending[0]
        due = first.step - self._ahead <= step if self._clock is None else first.event.ts <= self._clock.now_ns
        return first.event if due else None

    def take(self) -> None:
        """The next input has been fed."""
        self._pending.popleft()

    def hasten(self, step: int) -> None:
        """Nothing is left to do until the next input comes: then it comes before this step."""
        first = self._pending[0]
        if self._clock is None:
            self._ahead = max(self._ahead, first.step - step)
        else:
            self._clock.advance_to(first.event.ts)

    def ends_in_a_stop_string(self, serial: int, num_output_tokens: int) -> bool:
        """Whether the frontend found a stop string in that much output of a request."""
        return num_output_tokens >= self._stops.get(serial, num_output_tokens + 1)
