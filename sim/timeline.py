"""`Timeline`: any step of a trace at once, and the whole trace at a glance.

States are folded only where somebody looks. Every so many events the fold leaves a copy behind, a *keyframe*, so that
no step is further away than that; the distance grows with the pool, because a copy costs as much as the pool is big.

::

    events   ····schedule.called ········ step.scheduled ·········· update.request ·· schedule.called ····
                 ^ before                                ^ planned                   ^ after
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import TraceError
from engine.metrics import IterationMetrics
from engine.trace import events as ev
from sim.plan import PlanState
from sim.state import State, StateError
from sim.summary import LifeLine, TraceSummary, summarise

if TYPE_CHECKING:
    from engine.trace.file import Trace

#: Events between keyframes are at least this many, and at least half as many as there are blocks.
_KEYFRAME_EVENTS = 1024


class _Span(NamedTuple):
    """Positions in the list of events: where a step begins, where its plan is complete, where it has been answered."""

    start: int
    planned: int
    end: int


class StepView:
    """One step: its events, and the state before, at and after its plan. States are folded when first asked for."""

    def __init__(self, timeline: Timeline, step: int, span: _Span, previous: _Span) -> None:
        self.step = step
        self.header = timeline.header
        self._timeline = timeline
        self._span = span
        self._previous = previous

    @cached_property
    def events(self) -> list[ev.Event]:
        """Events of this step in order; with several steps in flight, only those that belong to it."""
        return [e for e in self._timeline.events[self._span.start : self._span.end] if e.step == self.step]

    @cached_property
    def preceding(self) -> list[ev.Event]:
        """What happened between the end of the step before and this one: arrivals, aborts, a reset."""
        return self._timeline.events[self._previous.end : self._span.start]

    @cached_property
    def arrivals(self) -> list[ev.RequestAdded]:
        """Requests that came in since the step before was begun."""
        between = self._timeline.events[self._previous.start : self._span.start]
        return [event for event in between if isinstance(event, ev.RequestAdded)]

    @cached_property
    def before(self) -> State:
        """The state in which the step was asked for."""
        return self._timeline.state_at(self._span.start)

    @cached_property
    def planned(self) -> State:
        """The state right after `step.scheduled`: what the forward pass runs with."""
        return self._timeline.state_at(self._span.planned)

    @cached_property
    def after(self) -> State:
        """The state after everything that belongs to the step."""
        return self._timeline.state_at(self._span.end)

    @property
    def plan(self) -> PlanState:
        """Rows, budget, who was left out.

        Raises:
            TraceError: the trace ends before the step was planned.
        """
        plan = self.planned.plan
        if plan is None or plan.step != self.step:
            raise TraceError(f"The trace ends before step {self.step} was planned.")
        return plan

    @cached_property
    def forward(self) -> ev.ForwardInputs | None:
        """The tensors of the super-sequence, if the trace was recorded at level forward."""
        return next((event for event in self.events if isinstance(event, ev.ForwardInputs)), None)

    @cached_property
    def logits(self) -> ev.ForwardLogits | None:
        """The likeliest tokens of the sampled rows, if the trace was recorded at level forward."""
        return next((event for event in self.events if isinstance(event, ev.ForwardLogits)), None)


class Timeline:
    """A trace one can move about in.

    Raises:
        StateError: its steps are not numbered from 1 upwards.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.header = trace.header
        self.events = trace.events
        self._spans = _spans(trace.events)
        self.steps: list[int] = list(self._spans)
        """Numbers of the steps, in order; normally 1, 2, 3, …"""
        self._interval = max(_KEYFRAME_EVENTS, trace.header.kv_cache.num_gpu_blocks // 2)
        self._keyframes = {0: State.initial(trace.header)}

    def step(self, number: int) -> StepView:
        """The view of a step.

        Raises:
            TraceError: the trace has no such step.
        """
        span = self._spans.get(number)
        if span is None:
            raise TraceError(self._no_such_step(number))
        return StepView(self, number, span, self._spans.get(number - 1, _Span(0, 0, 0)))

    def _no_such_step(self, number: int) -> str:
        if not self.steps:
            return f"There is no step {number}: the trace holds no step at all."
        return f"There is no step {number}: the trace holds steps {self.steps[0]} to {self.steps[-1]}."

    def state_at(self, position: int) -> State:
        """The state after the first `position` events, a copy of the caller's own.

        Raises:
            StateError: an event before that cannot follow the ones before it.
        """
        number = position // self._interval
        while number not in self._keyframes:
            number -= 1
        state = self._keyframes[number].copy()
        for place in range(number * self._interval, position):
            state.apply(self.events[place])
            if (place + 1) % self._interval == 0:
                # Never changed once it is there, so that several readers may fold at the same time.
                self._keyframes.setdefault((place + 1) // self._interval, state.copy())
        return state

    @cached_property
    def _summary(self) -> tuple[TraceSummary, dict[int, LifeLine]]:
        return summarise(self.trace)

    def summary(self) -> TraceSummary:
        """The whole trace in numbers."""
        return self._summary[0]

    @property
    def series(self) -> list[IterationMetrics]:
        """One line of numbers per step, in the order of `steps`."""
        return self._summary[0].metrics.iterations

    @property
    def life_lines(self) -> dict[int, LifeLine]:
        """By serial: the steps at which a request arrived, ran, was preempted and ended."""
        return self._summary[1]


#: What a client may send between two steps: what follows it belongs to no step that has been answered.
_BETWEEN = (ev.RequestAdded, ev.CacheResetAsked)


def _spans(events: list[ev.Event]) -> dict[int, _Span]:
    starts: dict[int, int] = {}
    planned: dict[int, int] = {}
    ends: dict[int, int] = {}
    newest = answered = closed = 0
    for position, event in enumerate(events):
        kind = type(event)
        if kind in _BETWEEN:
            closed = answered
            continue
        if kind is ev.ScheduleCalled:
            if event.step <= newest:
                raise StateError(event, f"it begins step {event.step}, where one after {newest} is due")
            starts[event.step] = position
            newest = event.step
        elif kind is ev.StepScheduled:
            planned[event.step] = position + 1
        elif kind is ev.StepOutput or kind is ev.ExecutorFailed:
            answered = event.step
        if event.step != closed:
            ends[event.step] = position + 1
    return {step: _Span(start, planned.get(step, ends[step]), ends[step]) for step, start in starts.items()}
