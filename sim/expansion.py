"""`Expansion`: writes out what a core that lets decodes coast has left unsaid, so that its trace is like any other.

Such a core tells what it decides of the requests that its steps name (see `engine/core/scheduler/coasting.py`), and
what the KV cache does for the others. Everything else about these follows from the order of the running queue::

    the core       step.started [r1 r2 r3]  schedule r2            step.scheduled [r2]        step.output [r2] …
    the trace      step.started [r1 r2 r3]  schedule r1, r2, r3    step.scheduled [r1 r2 r3]  step.output [r1 r2 r3] …
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from engine.core.seams import Foresight
from engine.trace.events import (
    Event,
    RequestFinished,
    ScheduleRequest,
    StepOutput,
    StepScheduled,
    StepStarted,
    UpdateRequest,
)
from engine.trace.recorder import EventSink


class Expansion:
    """An `EventSink` between a core and whoever is to hear all of its events.

    Args:
        sink: hears them.
        foresight: what the core foresees with.
    """

    def __init__(self, sink: EventSink, foresight: Foresight) -> None:
        self.coasters: Callable[[], Collection[int]] = tuple
        """Who coasts through the step that has just been planned."""
        self._sink = sink
        self._foresight = foresight
        self._num_computed: dict[int, int] = {}
        """Of the running requests, after the last step."""
        self._planning: list[Event] | None = None
        """The events of the step that is being planned."""
        self._to_update: list[int] = []
        """Of the rows whose output is being taken in, those of which nothing has been said yet."""
        self._coasting: Collection[int] = ()
        self._rows: list[int] = []

    @property
    def step(self) -> int:
        """See `EventSink`."""
        return self._sink.step

    @step.setter
    def step(self, step: int) -> None:
        self._sink.step = step

    def emit(self, event: Event) -> None:
        """See `EventSink`."""
        if isinstance(event, StepStarted):
            self._planning = [event]
        elif isinstance(event, StepScheduled):
            self._tell_plan(event)
        elif self._planning is not None:
            self._planning.append(event)
        elif isinstance(event, StepOutput):
            self._tell_output(event)
        elif isinstance(event, UpdateRequest):
            self._tell_updates_before(event.request)
            self._num_computed[event.request] = event.num_computed_tokens
            self._sink.emit(event)
        else:
            if isinstance(event, RequestFinished):
                self._num_computed.pop(event.request, None)
            self._sink.emit(event)

    def end_step(self) -> None:
        """Its output has been taken in."""
        self._tell_updates_before(None)

    def _tell_plan(self, scheduled: StepScheduled) -> None:
        assert self._planning is not None
        (started, *events), self._planning = self._planning, None
        self._coasting = self.coasters()
        self._sink.emit(started)
        if not self._coasting:
            self._rows = scheduled.requests
            for event in (*events, scheduled):
                self._sink.emit(event)
            return
        assert isinstance(started, StepStarted)
        num_scheduled = dict(zip(scheduled.requests, scheduled.num_scheduled_tokens, strict=True))
        num_scheduled |= dict.fromkeys(self._coasting, 1)
        budget, at = started.token_budget, 0
        for serial in started.running:
            budget -= num_scheduled.get(serial, 0)  # none, for a prompt behind one that has used it up
            while at < len(events) and getattr(events[at], "request", None) == serial:
                event = events[at]
                if isinstance(event, ScheduleRequest):
                    event.budget_left = budget
                self._sink.emit(event)
                at += 1
            if serial in self._coasting:
                self._sink.emit(self._scheduled(serial, budget))
        for event in events[at:]:
            self._sink.emit(event)
        running = dict.fromkeys(serial for serial in started.running if serial in num_scheduled)
        self._rows = [*running, *(serial for serial in scheduled.requests if serial not in running)]
        scheduled.requests = self._rows
        scheduled.num_scheduled_tokens = [num_scheduled[serial] for serial in self._rows]
        scheduled.total_num_scheduled_tokens += len(self._coasting)
        self._sink.emit(scheduled)

    def _tell_output(self, output: StepOutput) -> None:
        self._to_update = list(self._rows)
        if self._coasting:
            sampled = dict(zip(output.requests, output.sampled_token_ids, strict=True))
            sampled |= {serial: self._next_token(serial) for serial in self._coasting}
            output.requests, output.sampled_token_ids = self._rows, [sampled[serial] for serial in self._rows]
        self._sink.emit(output)

    def _tell_updates_before(self, named: int | None) -> None:
        """Of those that coast and come before a row; None: of all that are left."""
        while self._to_update:
            serial = self._to_update.pop(0)
            if serial == named:
                return
            if serial in self._coasting:
                token_ids = self._next_token(serial)
                self._num_computed[serial] += 1
                self._sink.emit(
                    UpdateRequest(
                        request=serial,
                        appended=token_ids,
                        num_cut=0,
                        num_rejected=0,
                        num_computed_tokens=self._num_computed[serial],
                        dropped=None,
                    )
                )

    def _next_token(self, serial: int) -> list[int]:
        # A decode has one token that is not computed yet; the next one comes behind it.
        return self._foresight.tokens(serial, self._num_computed[serial] + 1, 1)

    def _scheduled(self, serial: int, budget_left: int) -> ScheduleRequest:
        return ScheduleRequest(
            request=serial,
            admission="running",
            phase="decode",
            num_wanted_tokens=1,
            num_scheduled_tokens=1,
            num_computed_tokens=self._num_computed[serial],
            num_cached_tokens=0,
            truncated_by=None,
            budget_left=budget_left,
        )
