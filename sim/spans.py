"""Where each step of a trace begins, where its plan is complete, and where it has been answered."""

from __future__ import annotations

from typing import NamedTuple

from engine.trace import events as ev
from sim.state import StateError

#: What a client may send between two steps: what follows it belongs to no step that has been answered.
_BETWEEN = (ev.RequestAdded, ev.CacheResetAsked, ev.ConfigChanged)


class Span(NamedTuple):
    """Positions in the events of a trace."""

    start: int
    """Of `schedule.called`."""
    planned: int
    """Behind `step.scheduled`."""
    end: int
    """Behind the last event that belongs to the step."""


class SpanFinder:
    """Takes the events of a trace one after another."""

    def __init__(self) -> None:
        self._starts: dict[int, int] = {}
        self._planned: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._newest = self._answered = self._closed = 0

    def feed(self, position: int, event: ev.Event) -> None:
        """Take the event at a position.

        Raises:
            StateError: it begins a step that does not follow the one before.
        """
        kind = type(event)
        if kind in _BETWEEN:
            self._closed = self._answered
            return
        step = event.step
        if kind is ev.ScheduleCalled:
            if step <= self._newest:
                raise StateError(event, f"it begins step {step}, where one after {self._newest} is due")
            self._starts[step] = position
            self._newest = step
        elif kind is ev.StepScheduled:
            self._planned[step] = position + 1
        elif kind is ev.StepOutput or kind is ev.ExecutorFailed:
            self._answered = step
        if step != self._closed:
            self._ends[step] = position + 1

    def spans(self) -> dict[int, Span]:
        """By step, in order."""
        ends = self._ends
        return {
            step: Span(start, self._planned.get(step, ends[step]), ends[step]) for step, start in self._starts.items()
        }
