"""`Timeline`: any step of a trace at once, and the whole trace at a glance.

States are folded only where somebody looks, from the nearest state that was kept (`sim.keyframes`), and the events of
a large trace are decoded only there (`engine.trace.open_file`).

::

    events   ····schedule.called ········ step.scheduled ·········· update.request ·· schedule.called ····
                 ^ before                                ^ planned                   ^ after
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from engine.errors import TraceError
from engine.metrics import IterationMetrics
from engine.trace import events as ev
from engine.trace.file import AnyTrace
from sim.keyframes import Keyframes
from sim.plan import PlanState
from sim.spans import Span
from sim.state import State
from sim.summary import LifeLine, TraceSummary
from sim.touches import Touches
from sim.trace_index import FreshIndex, Progress, TraceIndex, open_indexed


class StepView:
    """One step: its events, and the state before, at and after its plan. States are folded when first asked for."""

    def __init__(self, timeline: Timeline, step: int, span: Span, previous: Span) -> None:
        self.step = step
        self.header = timeline.header
        self.timeline = timeline
        self._span = span
        self._previous = previous

    @cached_property
    def events(self) -> list[ev.Event]:
        """Events of this step in order; with several steps in flight, only those that belong to it."""
        return [e for e in self.timeline.events[self._span.start : self._span.end] if e.step == self.step]

    @cached_property
    def preceding(self) -> Sequence[ev.Event]:
        """What happened between the end of the step before and this one: arrivals, aborts, a reset."""
        return self.timeline.events[self._previous.end : self._span.start]

    @cached_property
    def arrivals(self) -> list[ev.RequestAdded]:
        """Requests that came in since the step before was begun."""
        between = self.timeline.events[self._previous.start : self._span.start]
        return [event for event in between if isinstance(event, ev.RequestAdded)]

    @cached_property
    def left(self) -> State:
        """The state that the step before left: what `preceding` meets."""
        return self.timeline.state_at(self._previous.end) if self._previous.end < self._span.start else self.before

    @cached_property
    def before(self) -> State:
        """The state in which the step was asked for."""
        return self.timeline.state_at(self._span.start)

    @cached_property
    def planned(self) -> State:
        """The state right after `step.scheduled`: what the forward pass runs with."""
        return self.timeline.state_at(self._span.planned)

    @cached_property
    def after(self) -> State:
        """The state after everything that belongs to the step."""
        return self.timeline.state_at(self._span.end)

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

    Args:
        trace: in memory, or in its file.
        index: what one pass over it has found; None: the pass is made now.

    Raises:
        StateError: its steps are not numbered from 1 upwards.
    """

    def __init__(self, trace: AnyTrace, index: TraceIndex | None = None) -> None:
        self.trace = trace
        self.header = trace.header
        self.events = trace.events
        self._index = FreshIndex.of(trace) if index is None else index
        self._spans = self._index.spans
        self.steps: list[int] = list(self._spans)
        """Numbers of the steps, in order; normally 1, 2, 3, …"""
        self._keyframes = Keyframes(trace.header, self._index.keyframes)

    @classmethod
    def open(cls, path: str | Path, progress: Progress = lambda share: None) -> Timeline:
        """Open a trace file, however large: see `sim.trace_index`.

        Args:
            path: the file.
            progress: is told which share is done, 0 to 1, while a large trace is looked through for the first time.

        Raises:
            TraceError: no such file, not a trace, of an unknown version, or damaged before its end.
            StateError: its steps are not numbered from 1 upwards.
        """
        return cls(*open_indexed(Path(path), progress))

    def step(self, number: int) -> StepView:
        """The view of a step.

        Raises:
            TraceError: the trace has no such step.
        """
        return StepView(self, number, self.span(number), self._spans.get(number - 1, Span(0, 0, 0)))

    def _no_such_step(self, number: int) -> str:
        if not self.steps:
            return f"There is no step {number}: the trace holds no step at all."
        return f"There is no step {number}: the trace holds steps {self.steps[0]} to {self.steps[-1]}."

    def state_at(self, position: int) -> State:
        """The state after the first `position` events, a copy of the caller's own.

        Raises:
            StateError: an event before that cannot follow the ones before it.
        """
        start, nearest = self._keyframes.nearest(position)
        state = nearest.copy()
        for place, event in enumerate(self.events[start:position], start + 1):
            state.apply(event)
            self._keyframes.offer(place, state, position)
        return state

    @property
    def touches(self) -> Touches:
        """Which events concern a block, and which a request."""
        return self._index.touches

    def span(self, number: int) -> Span:
        """Where the events of a step are. Raises as `step`."""
        span = self._spans.get(number)
        if span is None:
            raise TraceError(self._no_such_step(number))
        return span

    @cached_property
    def _summary(self) -> TraceSummary:
        return self._index.facts.summary(self.trace.truncated)

    def summary(self) -> TraceSummary:
        """The whole trace in numbers."""
        return self._summary

    @property
    def series(self) -> list[IterationMetrics]:
        """One line of numbers per step, in the order of `steps`."""
        return self._index.facts.metrics.iterations

    def facts_of(self, step: int) -> IterationMetrics:
        """The line of a step in `series`.

        Raises:
            TraceError: there is no such step, or the trace ends before its plan was begun.
        """
        place = bisect_left(self.series, step, key=lambda facts: facts.step)
        if place == len(self.series) or self.series[place].step != step:
            raise TraceError(f"The trace holds no step {step} whose plan was begun.")
        return self.series[place]

    @cached_property
    def life_lines(self) -> dict[int, LifeLine]:
        """By serial: the steps at which a request arrived, ran, was preempted and ended."""
        return self._index.facts.life_lines()
