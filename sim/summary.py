"""A trace in numbers: as a whole, per step, and per request. One pass over the events, no state folded.

What can be measured comes from `engine.metrics`; here it is joined by what only a trace has: its events, and the steps
in which things happened to a request.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine.core.messages import RequestStatus
from engine.metrics import MetricsCollector, RequestMetrics, RunMetrics
from engine.trace import events as ev


@dataclass(slots=True)
class TraceSummary:
    """The whole trace."""

    metrics: RunMetrics
    num_events: int
    num_decisions: int
    event_types: Counter[str]
    duration_ns: int
    """Until its last event."""
    truncated: str | None
    """What is missing at the end of the file, if anything is."""
    num_steps: int
    num_requests: int
    num_finished: int
    finish_reasons: Counter[str]
    num_prompt_tokens: int
    num_scheduled_tokens: int
    """Tokens that went through a forward pass, those computed again after a preemption included."""
    num_output_tokens: int
    num_preemptions: int
    num_queried_tokens: int
    """Tokens for which the prefix cache was asked at an admission."""
    num_hit_tokens: int
    """Tokens that the prefix cache spared at an admission."""
    num_evictions: int
    """Cached prefixes lost because their block was handed out again."""
    peak_blocks_in_use: int


@dataclass(slots=True)
class LifeLine:
    """One request: what happened to it, and in which step."""

    request: RequestMetrics
    added: int
    scheduled: list[int] = field(default_factory=list)
    """Steps in which it got tokens."""
    prefills: list[tuple[int, int]] = field(default_factory=list)
    """Those of them in which it was in prefill, each with its tokens."""
    tokens: list[int] = field(default_factory=list)
    """Steps that brought it new tokens: one for each of `request.output_times_ns`."""
    preempted: list[int] = field(default_factory=list)
    finished: int | None = None
    turns: list[tuple[int, str]] = field(default_factory=list)
    """Its statuses, each with the first step that was planned with it."""

    @property
    def first_scheduled(self) -> int | None:
        """The first step in which it got tokens."""
        return self.scheduled[0] if self.scheduled else None

    @property
    def first_token(self) -> int | None:
        """The step that brought its first token."""
        return self.tokens[0] if self.tokens else None

    def status_in(self, step: int) -> RequestStatus | None:
        """Its status as the forward pass of a step runs; None before it was there."""
        place = bisect_right(self.turns, step, key=lambda turn: turn[0])
        return RequestStatus(self.turns[place - 1][1]) if place else None


@dataclass(slots=True)
class TraceFacts:
    """What a summary is made of; this is what an index keeps of it."""

    metrics: RunMetrics
    lives: list[LifeLine]
    """By serial, of the requests of `metrics`."""
    event_types: dict[str, int]
    duration_ns: int

    def life_lines(self) -> dict[int, LifeLine]:
        """By serial."""
        return {life.request.serial: life for life in self.lives}

    def summary(self, truncated: str | None) -> TraceSummary:
        """The whole trace; `truncated` says what is missing at its end."""
        requests, iterations = self.metrics.requests, self.metrics.iterations
        finish_reasons = Counter(request.finish_reason for request in requests if request.finish_reason is not None)
        return TraceSummary(
            metrics=self.metrics,
            num_events=sum(self.event_types.values()),
            num_decisions=sum(
                count for tag, count in self.event_types.items() if ev.EVENT_TYPES[tag].kind is ev.DECISION
            ),
            event_types=Counter(self.event_types),
            duration_ns=self.duration_ns,
            truncated=truncated,
            num_steps=len(iterations),
            num_requests=len(requests),
            num_finished=finish_reasons.total(),
            finish_reasons=finish_reasons,
            num_prompt_tokens=sum(request.num_prompt_tokens for request in requests),
            num_scheduled_tokens=sum(iteration.tokens for iteration in iterations),
            num_output_tokens=sum(iteration.output_tokens for iteration in iterations),
            num_preemptions=sum(iteration.preemptions for iteration in iterations),
            num_queried_tokens=sum(iteration.queried_tokens for iteration in iterations),
            num_hit_tokens=sum(iteration.hit_tokens for iteration in iterations),
            num_evictions=sum(iteration.evictions for iteration in iterations),
            peak_blocks_in_use=max((iteration.blocks_in_use for iteration in iterations), default=0),
        )


class Summariser:
    """Takes the events of a trace one after another."""

    def __init__(self, header: ev.Header) -> None:
        self._collector = MetricsCollector(header.kv_cache)
        self._lives = _Lives(self._collector)
        self._types: Counter[type[ev.Event]] = Counter()
        self._last_ts = 0

    def feed(self, event: ev.Event) -> None:
        """Take the next event."""
        kind = type(event)
        self._types[kind] += 1
        self._last_ts = event.ts
        self._collector.feed(event)
        if note := _NOTES.get(kind):
            note(self._lives, event)

    def facts(self) -> TraceFacts:
        """What has been found."""
        tags = {ev.tag_of(kind): count for kind, count in self._types.items()}
        return TraceFacts(self._collector.metrics(), list(self._lives.by_serial.values()), tags, self._last_ts)


class _Lives:
    """In which step what happened to whom; the collector has heard of an event before."""

    def __init__(self, collector: MetricsCollector) -> None:
        self.by_serial: dict[int, LifeLine] = {}
        self._collector = collector
        self._planned = 0
        """The step whose plan is the first to see what happens now."""

    def added(self, event: ev.RequestAdded) -> None:
        request = self._collector.request(event.request)
        assert request is not None
        self.by_serial[event.request] = LifeLine(request, added=event.step)

    def turned(self, event: ev.RequestStatusChanged) -> None:
        if life := self.by_serial.get(event.request):
            life.turns.append((self._planned, event.new))

    def started(self, event: ev.StepStarted) -> None:
        self._planned = event.step

    def row(self, event: ev.ScheduleRequest) -> None:
        life = self.by_serial.get(event.request)
        if event.phase == "prefill" and life is not None:
            life.prefills.append((event.step, event.num_scheduled_tokens))

    def scheduled(self, event: ev.StepScheduled) -> None:
        self._planned = event.step + 1
        for serial in event.requests:
            if life := self.by_serial.get(serial):
                life.scheduled.append(event.step)

    def preempted(self, event: ev.SchedulePreempted) -> None:
        if life := self.by_serial.get(event.victim):
            life.preempted.append(event.step)
            if life.prefills and life.prefills[-1][0] == event.step:
                life.prefills.pop()  # the step takes its row back

    def updated(self, event: ev.UpdateRequest) -> None:
        life = self.by_serial.get(event.request)
        if event.appended and life is not None:
            life.tokens.append(event.step)

    def finished(self, event: ev.RequestFinished) -> None:
        if life := self.by_serial.get(event.request):
            life.finished = event.step


_NOTES: dict[type[ev.Event], Callable[[_Lives, Any], None]] = {
    ev.RequestAdded: _Lives.added,
    ev.RequestStatusChanged: _Lives.turned,
    ev.StepStarted: _Lives.started,
    ev.ScheduleRequest: _Lives.row,
    ev.StepScheduled: _Lives.scheduled,
    ev.SchedulePreempted: _Lives.preempted,
    ev.UpdateRequest: _Lives.updated,
    ev.RequestFinished: _Lives.finished,
}
