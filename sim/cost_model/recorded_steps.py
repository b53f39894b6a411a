"""The steps of a recorded run: what was in each, and how long it took."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from engine.trace import events as ev
from sim.cost_model.composition import RowShare, StepComposition


class RecordedStep(NamedTuple):
    """One step that ran."""

    step: int
    composition: StepComposition
    duration_ns: int
    """From its `schedule.called` to that of the next step; if the engine had nothing to do in between, to the step's
    own last event."""


class _Open:
    """A step whose end has not been seen."""

    def __init__(self, step: int, started: int) -> None:
        self.step = step
        self.started = self.last = started
        self.rows: dict[int, RowShare] = {}
        self.num_padded_tokens = 0
        self.was_executed = False

    def feed(self, event: ev.Event) -> None:
        if isinstance(event, ev.ScheduleRequest):
            self.rows[event.request] = _share(event)
        elif isinstance(event, ev.SchedulePreempted):
            self.rows.pop(event.victim, None)
        elif isinstance(event, ev.StepExecuted):
            self.num_padded_tokens = event.num_padded_tokens
        elif isinstance(event, ev.StepOutput):
            self.was_executed = True
        if event.step == self.step:
            self.last = event.ts

    @property
    def composition(self) -> StepComposition | None:
        """What ran; None if nothing did."""
        if not self.rows or not self.was_executed:
            return None
        return StepComposition.of(self.rows.values(), self.num_padded_tokens)

    def closed_at(self, end: int) -> Iterator[RecordedStep]:
        composition = self.composition
        if composition is not None:
            yield RecordedStep(self.step, composition, end - self.started)


def recorded_steps(events: Iterable[ev.Event]) -> Iterator[RecordedStep]:
    """The steps of a synchronous run, in order; those that failed or ran nothing are left out.

    With several steps in flight a step has no time of its own, so a trace of such a run gives steps that overlap: it
    is for the caller to refuse it.
    """
    unfinished = 0
    step: _Open | None = None
    for event in events:
        if step is not None and step.was_executed and not unfinished and event.kind is ev.EventClass.INPUT:
            # The engine was idle until now, which may have been long.
            yield from step.closed_at(step.last)
            step = None
        if isinstance(event, ev.ScheduleCalled):
            if step is not None:
                yield from step.closed_at(event.ts)
            step = _Open(event.step, event.ts)
        elif isinstance(event, ev.RequestAdded):
            unfinished += 1
        elif isinstance(event, ev.RequestFinished):
            unfinished -= 1
        if step is not None:
            step.feed(event)
    if step is not None:
        yield from step.closed_at(step.last)


def composition_of(step: int, events: Iterable[ev.Event]) -> StepComposition | None:
    """What one step ran, from its own events; None if it ran nothing, or failed."""
    opened = _Open(step, started=0)
    for event in events:
        opened.feed(event)
    return opened.composition


def _share(event: ev.ScheduleRequest) -> RowShare:
    """A request is sampled if the step leaves none of its tokens to compute."""
    complete = event.num_scheduled_tokens == event.num_wanted_tokens
    num_logits = 1 + len(event.draft_token_ids) if complete else 0
    return RowShare(event.num_computed_tokens, event.num_scheduled_tokens, num_logits)
