"""One pass over a trace: its events, and every step and request in numbers as soon as it is over."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from engine.metrics import IterationMetrics, MetricsCollector, RequestMetrics
from engine.trace import events as ev

#: So many steps after it was planned a step is over, whatever loop drove it.
_MOST_IN_FLIGHT = 32


@dataclass(frozen=True)
class Report:
    """What an exporter did."""

    written: Counter[str] = field(default_factory=Counter)
    """Things in the file, by what they are."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Things of the trace that the format has no place for, by what they are."""


def walk(header: ev.Header, events: Iterable[ev.Event]) -> Iterator[ev.Event | IterationMetrics | RequestMetrics]:
    """The events in their order; behind the last event of a step or a request, that step or request.

    Those that are not over when the trace ends come at its end, a request with None for its end.
    """
    collector = MetricsCollector(header.kv_cache, window=2 * _MOST_IN_FLIGHT)
    steps: deque[int] = deque()
    for event in events:
        collector.feed(event)
        yield event
        if isinstance(event, ev.StepStarted):
            steps.append(event.step)
            if len(steps) > _MOST_IN_FLIGHT:
                yield _step(collector, steps.popleft())
        elif isinstance(event, ev.RequestFinished):
            request = collector.request(event.request)
            if request is not None:
                yield request
    while steps:
        yield _step(collector, steps.popleft())
    yield from (request for request in collector.metrics().requests if request.finished_ns is None)


def _step(collector: MetricsCollector, step: int) -> IterationMetrics:
    iteration = collector.iteration(step)
    assert iteration is not None
    return iteration
