"""Finds the steps for which a question holds."""

from __future__ import annotations

from collections.abc import Iterator

from engine.trace import events as ev
from sim.query.names import RequestName, Row
from sim.query.predicate import Moment, Predicate
from sim.timeline import Timeline


def steps_where(timeline: Timeline, predicate: Predicate, steps: list[int]) -> Iterator[int]:
    """Those of the steps for which a question holds, in the order in which they are given.

    A question about a step costs next to nothing; for one about its rows, the events of the step are decoded.
    """
    facts = {each.step: each for each in timeline.series}
    if predicate.request is not None:
        there = set(candidates(timeline, predicate))
        steps = [step for step in steps if step in there]
    for step in steps:
        if step not in facts:
            continue  # the trace ends before it was begun
        rows = rows_of(timeline, step) if predicate.is_of_rows else [None]
        if any(predicate.holds(Moment(facts[step], row)) for row in rows):
            yield step


def candidates(timeline: Timeline, predicate: Predicate) -> list[int]:
    """The steps for which a question can hold at all, in order: those of the request without which it cannot."""
    if predicate.request is None:
        return timeline.steps
    return sorted(_steps_of(timeline, predicate.request))


def rows_of(timeline: Timeline, step: int) -> list[Row]:
    """Who got tokens in a step; without those whose row a preemption took back."""
    span = timeline.span(step)
    rows: dict[int, Row] = {}
    for event in timeline.events[span.start : span.planned]:
        if event.step != step:
            continue
        if isinstance(event, ev.ScheduleRequest):
            life = timeline.life_lines.get(event.request)
            request_id = "" if life is None else life.request.request_id
            rows[event.request] = Row(RequestName(f"r{event.request}", request_id), event)
        elif isinstance(event, ev.SchedulePreempted):
            rows.pop(event.victim, None)
    return list(rows.values())


def _steps_of(timeline: Timeline, word: str) -> set[int]:
    return {
        step
        for serial, life in timeline.life_lines.items()
        if word in (f"r{serial}", life.request.request_id)
        for step in life.scheduled
    }
