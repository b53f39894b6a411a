"""`MetricsCollector`: folds the events of a run into metrics, while they happen or out of a trace."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from engine.config import KVCacheConfig
from engine.metrics.iteration import IterationMetrics
from engine.metrics.per_position import counted_up_to
from engine.metrics.request import RequestMetrics
from engine.metrics.run import RunMetrics
from engine.metrics.summary import MetricsSummary
from engine.metrics.tally import Tally
from engine.trace import events as ev

_Kept = TypeVar("_Kept", RequestMetrics, IterationMetrics)


class MetricsCollector:
    """Takes stamped events in their order; it keeps numbers only, never an event's lists.

    Args:
        kv_cache: the KV cache as it was built.
        window: the most finished requests, and the most steps, that are kept, so that an engine may run for ever;
            None: all of them. A step must be kept for as long as it is in flight.
        tally: counts what leaves the window, so that `summarise` sums up the whole run although little of it is kept;
            None: what leaves is forgotten.
    """

    def __init__(self, kv_cache: KVCacheConfig, window: int | None = None, tally: Tally | None = None) -> None:
        self._usable_blocks = kv_cache.num_gpu_blocks - 1
        self._window = window
        self._tally = tally
        self._live: dict[int, RequestMetrics] = {}
        self._finished: OrderedDict[int, RequestMetrics] = OrderedDict()
        self._iterations: OrderedDict[int, IterationMetrics] = OrderedDict()
        self._rows: dict[int, ev.ScheduleRequest] = {}
        """Rows of the step that is being planned; a preemption may take one back."""
        self._queried_tokens: dict[int, int] = {}
        """By serial, of the last lookup: it is repeated for as long as its request is not admitted."""
        self._stopped: set[int] = set()
        """Serials whose abort says that a stop string ended them."""

    @classmethod
    def of_events(cls, kv_cache: KVCacheConfig, events: Iterable[ev.Event]) -> RunMetrics:
        """The metrics of a recorded run."""
        collector = cls(kv_cache)
        for event in events:
            collector.feed(event)
        return collector.metrics()

    def feed(self, event: ev.Event) -> None:
        """Take one event; types that no metric follows from are ignored."""
        fold = _FOLDS.get(type(event))
        if fold is not None:
            fold(self, event)

    def metrics(self) -> RunMetrics:
        """What has been collected so far. Its lists stay as they are; requests still alive go on counting."""
        requests = [*self._finished.values(), *self._live.values()]
        requests.sort(key=lambda request: request.serial)
        return RunMetrics(requests, list(self._iterations.values()))

    def summarise(
        self, percentiles: Sequence[float] = (99,), goodput: Mapping[str, float] | None = None
    ) -> MetricsSummary:
        """Sum up what is kept and what was tallied, see `Tally.summarise`."""
        kept = self.metrics()
        return (self._tally or Tally()).and_those(kept.requests, kept.iterations).summarise(percentiles, goodput)

    def request(self, serial: int) -> RequestMetrics | None:
        """A request that lives or is still kept."""
        return self._live.get(serial) or self._finished.get(serial)

    def iteration(self, step: int) -> IterationMetrics | None:
        """A step that is still kept."""
        return self._iterations.get(step)

    # --- requests -----------------------------------------------------------------------------------------------

    def _added(self, event: ev.RequestAdded) -> None:
        self._live[event.request] = RequestMetrics(
            event.request, event.request_id, len(event.prompt_token_ids), arrival_ns=event.ts
        )

    def _aborted(self, event: ev.RequestAborted) -> None:
        if event.cause == ev.STOP_STRING:
            self._stopped.update(event.requests)

    def _request_finished(self, event: ev.RequestFinished) -> None:
        if iteration := self._iterations.get(event.step):
            iteration.finishes += 1
        self._queried_tokens.pop(event.request, None)
        request = self._live.pop(event.request, None)
        if request is None:
            return
        request.finished_ns = event.ts
        request.finish_reason = "stop" if event.request in self._stopped else event.finish_reason
        self._stopped.discard(event.request)
        self._finished[event.request] = request
        forgotten = self._beyond_window(self._finished)
        if forgotten is not None and self._tally is not None:
            self._tally.add_request(forgotten)

    # --- the plan of a step -------------------------------------------------------------------------------------

    def _started(self, event: ev.StepStarted) -> None:
        self._rows.clear()
        self._iterations[event.step] = IterationMetrics(
            event.step,
            started_ns=event.ts,
            ended_ns=event.ts,
            token_budget=event.token_budget,
            num_running=len(event.running),
            num_waiting=event.num_waiting,
            usable_blocks=self._usable_blocks,
            free_blocks=event.free_blocks,
        )
        forgotten = self._beyond_window(self._iterations)
        if forgotten is not None and self._tally is not None:
            self._tally.add_iteration(forgotten)

    def _looked_up(self, event: ev.KVLookup) -> None:
        self._queried_tokens[event.request] = event.num_queried_tokens

    def _row(self, event: ev.ScheduleRequest) -> None:
        self._rows[event.request] = event
        if event.admission == "running":
            return
        if iteration := self._iterations.get(event.step):
            iteration.queried_tokens += self._queried_tokens.pop(event.request, 0)
            iteration.hit_tokens += event.num_cached_tokens
        request = self._live.get(event.request)
        if request is not None and request.first_scheduled_ns is None:
            request.first_scheduled_ns = event.ts
            request.num_cached_tokens = event.num_cached_tokens + event.num_remote_tokens

    def _preempted(self, event: ev.SchedulePreempted) -> None:
        self._rows.pop(event.victim, None)
        if iteration := self._iterations.get(event.step):
            iteration.preemptions += 1
        if request := self._live.get(event.victim):
            request.num_preemptions += 1

    def _allocated(self, event: ev.KVAllocated) -> None:
        if event.evicted_block_ids and (iteration := self._iterations.get(event.step)):
            iteration.evictions += len(event.evicted_block_ids)

    def _scheduled(self, event: ev.StepScheduled) -> None:
        iteration = self._iterations.get(event.step)
        if iteration is None:
            return
        for row in self._rows.values():
            if row.phase == "prefill":
                iteration.prefill_tokens += row.num_scheduled_tokens
            else:
                iteration.decode_tokens += row.num_scheduled_tokens
        iteration.num_rows, iteration.free_blocks = len(self._rows), event.free_blocks
        iteration.ended_ns = event.ts

    # --- what came of it ----------------------------------------------------------------------------------------

    def _answered(self, event: ev.StepOutput | ev.ExecutorFailed) -> None:
        if iteration := self._iterations.get(event.step):
            iteration.ended_ns = event.ts

    def _updated(self, event: ev.UpdateRequest) -> None:
        num_tokens = len(event.appended)
        if iteration := self._iterations.get(event.step):
            iteration.ended_ns = event.ts
            iteration.output_tokens += num_tokens
            row = self._rows.get(event.request)
            if row is not None and row.draft_token_ids and event.dropped is None:
                num_drafts = len(row.draft_token_ids)
                # A request whose logits could not be sampled from got nothing, and no draft is said to be rejected.
                num_accepted = num_drafts - event.num_rejected if num_tokens else 0
                iteration.drafted = counted_up_to(num_drafts, iteration.drafted)
                iteration.accepted = counted_up_to(num_accepted, iteration.accepted)
        if num_tokens and (request := self._live.get(event.request)):
            request.output_times_ns.append(event.ts)
            request.num_output_tokens += num_tokens

    def _beyond_window(self, kept: OrderedDict[int, _Kept]) -> _Kept | None:
        """Take out the oldest of them, if they are too many."""
        if self._window is None or len(kept) <= self._window:
            return None
        return kept.popitem(last=False)[1]


_FOLDS: dict[type[ev.Event], Callable[[MetricsCollector, Any], None]] = {
    ev.RequestAdded: MetricsCollector._added,
    ev.RequestAborted: MetricsCollector._aborted,
    ev.RequestFinished: MetricsCollector._request_finished,
    ev.StepStarted: MetricsCollector._started,
    ev.KVLookup: MetricsCollector._looked_up,
    ev.ScheduleRequest: MetricsCollector._row,
    ev.SchedulePreempted: MetricsCollector._preempted,
    ev.KVAllocated: MetricsCollector._allocated,
    ev.StepScheduled: MetricsCollector._scheduled,
    ev.StepOutput: MetricsCollector._answered,
    ev.ExecutorFailed: MetricsCollector._answered,
    ev.UpdateRequest: MetricsCollector._updated,
}
