"""A trace in numbers: as a whole, per step, and per request. One pass over the events, no state folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.trace import events as ev

if TYPE_CHECKING:
    from engine.trace.file import Trace


@dataclass(slots=True)
class TraceSummary:
    """The whole trace."""

    num_events: int = 0
    num_decisions: int = 0
    num_steps: int = 0
    num_requests: int = 0
    num_finished: int = 0
    finish_reasons: Counter[str] = field(default_factory=Counter)
    num_prompt_tokens: int = 0
    num_scheduled_tokens: int = 0
    """Tokens that went through a forward pass, those computed again after a preemption included."""
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_queried_tokens: int = 0
    """Tokens for which the prefix cache was asked at an admission."""
    num_hit_tokens: int = 0
    """Tokens that the prefix cache spared at an admission."""
    num_evictions: int = 0
    """Cached prefixes lost because their block was handed out again."""
    peak_blocks_in_use: int = 0
    duration_ns: int = 0
    event_types: Counter[str] = field(default_factory=Counter)
    truncated: str | None = None
    """What is missing at the end of the file, if anything is."""


@dataclass(slots=True)
class StepFacts:
    """One step."""

    step: int
    ts: int
    token_budget: int
    num_waiting: int
    """At the start of the step."""
    prefill_tokens: int = 0
    decode_tokens: int = 0
    num_rows: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    hit_tokens: int = 0
    evictions: int = 0
    finishes: int = 0
    free_blocks: int = 0
    """After the plan of the step."""

    @property
    def tokens(self) -> int:
        """Length of the super-sequence."""
        return self.prefill_tokens + self.decode_tokens


@dataclass(slots=True)
class LifeLine:
    """One request: what happened to it, and in which step."""

    serial: int
    request_id: str
    num_prompt_tokens: int
    added: int
    first_scheduled: int | None = None
    first_token: int | None = None
    preempted: list[int] = field(default_factory=list)
    scheduled: list[int] = field(default_factory=list)
    """Steps in which it got tokens."""
    finished: int | None = None
    finish_reason: str | None = None
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    """Tokens that the prefix cache and the KV connector spared at the first admission."""

    @property
    def name(self) -> str:
        """Its short name, `r` and its serial."""
        return f"r{self.serial}"


def summarise(trace: Trace) -> tuple[TraceSummary, list[StepFacts], dict[int, LifeLine]]:
    """Sum up a trace: as a whole, per step, and per request by serial."""
    tally = _Tally(num_blocks=trace.header.kv_cache.num_gpu_blocks)
    counters = _COUNTERS
    for event in trace.events:
        count = counters.get(type(event))
        if count is not None:
            count(tally, event)
    return tally.finish(trace), list(tally.steps.values()), tally.lives


class _Tally:
    """What the pass over the events has found so far."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.total = TraceSummary()
        self.steps: dict[int, StepFacts] = {}
        self.lives: dict[int, LifeLine] = {}
        self.rows: dict[int, dict[int, ev.ScheduleRequest]] = {}
        self.queried: dict[int, int] = {}

    def finish(self, trace: Trace) -> TraceSummary:
        total = self.total
        total.truncated = trace.truncated
        total.num_events = len(trace.events)
        types: Counter[type[ev.Event]] = Counter(map(type, trace.events))
        total.event_types = Counter({str(kind.__struct_config__.tag): count for kind, count in types.items()})
        total.num_decisions = sum(count for kind, count in types.items() if kind.kind is ev.DECISION)
        total.num_steps = len(self.steps)
        total.num_requests = len(self.lives)
        total.num_finished = sum(total.finish_reasons.values())
        total.duration_ns = trace.events[-1].ts if trace.events else 0
        return total

    def added(self, event: ev.RequestAdded) -> None:
        self.lives[event.request] = LifeLine(
            event.request, event.request_id, len(event.prompt_token_ids), added=event.step
        )
        self.total.num_prompt_tokens += len(event.prompt_token_ids)

    def finished(self, event: ev.RequestFinished) -> None:
        self.total.finish_reasons[event.finish_reason] += 1
        if life := self.lives.get(event.request):
            life.finished, life.finish_reason = event.step, event.finish_reason
        if step := self.steps.get(event.step):
            step.finishes += 1

    def started(self, event: ev.StepStarted) -> None:
        self.steps[event.step] = StepFacts(event.step, event.ts, event.token_budget, event.num_waiting)
        self.rows[event.step] = {}

    def looked_up(self, event: ev.KVLookup) -> None:
        self.queried[event.request] = event.num_queried_tokens

    def row(self, event: ev.ScheduleRequest) -> None:
        self.rows.setdefault(event.step, {})[event.request] = event
        if event.admission == "running":
            return
        # A lookup may be repeated for as long as its request is not admitted: the one that counts is the last.
        self.total.num_queried_tokens += self.queried.pop(event.request, 0)
        self.total.num_hit_tokens += event.num_cached_tokens
        if step := self.steps.get(event.step):
            step.hit_tokens += event.num_cached_tokens
        if (life := self.lives.get(event.request)) and life.first_scheduled is None:
            life.first_scheduled = event.step
            life.num_cached_tokens = event.num_cached_tokens + event.num_remote_tokens

    def preempted(self, event: ev.SchedulePreempted) -> None:
        self.total.num_preemptions += 1
        self.rows.setdefault(event.step, {}).pop(event.victim, None)
        if life := self.lives.get(event.victim):
            life.preempted.append(event.step)
        if step := self.steps.get(event.step):
            step.preemptions += 1

    def scheduled(self, event: ev.StepScheduled) -> None:
        step, rows = self.steps.get(event.step), self.rows.pop(event.step, {})
        self.total.num_scheduled_tokens += event.total_num_scheduled_tokens
        self.total.peak_blocks_in_use = max(self.total.peak_blocks_in_use, self.num_blocks - 1 - event.free_blocks)
        if step is None:
            return
        for serial, row in rows.items():
            if row.phase == "prefill":
                step.prefill_tokens += row.num_scheduled_tokens
            else:
                step.decode_tokens += row.num_scheduled_tokens
            if life := self.lives.get(serial):
                life.scheduled.append(event.step)
        step.num_rows, step.free_blocks = len(rows), event.free_blocks

    def allocated(self, event: ev.KVAllocated) -> None:
        self.total.num_evictions += len(event.evicted_block_ids)
        if event.evicted_block_ids and (step := self.steps.get(event.step)):
            step.evictions += len(event.evicted_block_ids)

    def updated(self, event: ev.UpdateRequest) -> None:
        if not event.appended:
            return
        self.total.num_output_tokens += len(event.appended)
        if life := self.lives.get(event.request):
            life.num_output_tokens += len(event.appended)
            if life.first_token is None:
                life.first_token = event.step
        if step := self.steps.get(event.step):
            step.output_tokens += len(event.appended)


_COUNTERS: dict[type[ev.Event], Callable[[_Tally, Any], None]] = {
    ev.RequestAdded: _Tally.added,
    ev.RequestFinished: _Tally.finished,
    ev.StepStarted: _Tally.started,
    ev.KVLookup: _Tally.looked_up,
    ev.ScheduleRequest: _Tally.row,
    ev.SchedulePreempted: _Tally.preempted,
    ev.StepScheduled: _Tally.scheduled,
    ev.KVAllocated: _Tally.allocated,
    ev.UpdateRequest: _Tally.updated,
}
