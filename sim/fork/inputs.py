"""The inputs that a recorded run had after the fork: when are they due in the other run?"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from engine.trace import events as ev
from engine.trace.file import AnyTrace
from sim.clock import VirtualClock

_Fed = (ev.RequestAdded, ev.RequestAborted, ev.GrammarReady, ev.GrammarFailed, ev.CacheResetAsked, ev.ConfigChanged)


class Moment(NamedTuple):
    """When an input comes; moments compare as they follow each other."""

    step: int
    in_flight: bool
    """After the step was planned, while its output is awaited; else before it is planned."""


class _Due(NamedTuple):
    event: ev.Event
    moment: Moment


class PendingInputs:
    """What is still to come, in order.

    Args:
        trace: the recorded run.
        position: of its first event behind the fork.
        step: the first that is planned anew.
        clock: of the other run; None: an input comes in the same step as in the recorded run.
    """

    def __init__(self, trace: AnyTrace, position: int, step: int, clock: VirtualClock | None) -> None:
        self._clock = clock
        self._pending: deque[_Due] = deque()
        self._ahead = 0
        """Steps that the other run has skipped, because nothing was left to do until the next input."""
        self._stops: dict[int, int] = {}
        self._in_vain: set[int] = set()
        """Steps that the recorded loop planned although nobody could run."""
        num_output_tokens: Counter[int] = Counter()
        moment = Moment(step, in_flight=False)
        for place, event in enumerate(trace.events):
            if isinstance(event, ev.UpdateRequest):
                num_output_tokens[event.request] += len(event.appended)
            if place < position:
                continue
            if isinstance(event, ev.ScheduleCalled):
                moment = Moment(event.step, in_flight=True)
            elif isinstance(event, ev.StepScheduled) and not event.requests:
                self._in_vain.add(event.step)
            elif isinstance(event, ev.StepOutput) and event.step == moment.step:
                moment = Moment(event.step + 1, in_flight=False)
            elif isinstance(event, ev.RequestAborted) and event.cause == ev.STOP_STRING:
                self._stops |= {serial: num_output_tokens[serial] for serial in event.requests}
            elif isinstance(event, ev.ExecutorFailed):
                if event.step >= step:  # else it was in flight at the fork, and is over
                    self._pending.append(_Due(event, moment))
                moment = Moment(event.step + 1, in_flight=False)
            elif isinstance(event, _Fed):
                self._pending.append(_Due(event, moment))

    def __bool__(self) -> bool:
        return bool(self._pending)

    def next_due(self, moment: Moment) -> ev.Event | None:
        """The next input, if it is due by then; it stays until `take`."""
        if not self._pending:
            return None
        event, recorded = self._pending[0]
        if self._clock is None:
            due = recorded <= moment._replace(step=moment.step + self._ahead)
        else:
            due = event.ts <= self._clock.now_ns and recorded.in_flight >= moment.in_flight
        return event if due else None

    def was_in_vain(self, step: int) -> bool:
        """Whether the recorded loop planned this step although nobody could run."""
        return self._clock is None and step + self._ahead in self._in_vain

    def take(self) -> None:
        """The next input has been fed."""
        self._pending.popleft()

    def hasten(self, step: int) -> None:
        """Nothing is left to do until the next input comes: then it comes before this step."""
        event, recorded = self._pending[0]
        if self._clock is None:
            self._ahead = max(self._ahead, recorded.step + recorded.in_flight - step)
        else:
            self._clock.advance_to(event.ts)

    def ends_in_a_stop_string(self, serial: int, num_output_tokens: int) -> bool:
        """Whether the frontend found a stop string in that much output of a request."""
        return num_output_tokens >= self._stops.get(serial, num_output_tokens + 1)
