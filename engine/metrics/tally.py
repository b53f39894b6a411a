"""`Tally`: requests and steps reduced to what a summary of them needs, so that a run may be long.

It keeps six latencies of eight bytes each per completed request, how often each inter-token latency occurred (that of
one step is that of all its decodes), and sums of everything else; so the percentiles are exact.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING

from engine.errors import ConfigError
from engine.metrics.distribution import Distribution
from engine.metrics.per_position import summed
from engine.metrics.summary import LATENCIES, OBJECTIVES, MetricsSummary

if TYPE_CHECKING:
    from engine.metrics.iteration import IterationMetrics
    from engine.metrics.request import RequestMetrics

_NS_PER_MS = 1e6
_NS_PER_S = 1_000_000_000


class Tally:
    """What has been counted so far; nothing of it is kept by reference."""

    def __init__(self) -> None:
        self._latencies_ms: dict[str, array[float]] = {name: array("d") for name in LATENCIES if name != "itl"}
        """Of completed requests; those of `OBJECTIVES` have one entry per request, nan where it has none."""
        self._itls_ns: Counter[int] = Counter()
        self._first_arrival_ns: int | None = None
        self._last_end_ns = 0
        self._completed = self._failed = 0
        self._input_tokens = self._output_tokens = 0
        self._iterations = 0
        self._preemptions = self._queried_tokens = self._hit_tokens = 0
        self._kv_cache_usage, self._max_kv_cache_usage = 0.0, 0.0
        self._drafted: tuple[int, ...] = ()
        self._accepted: tuple[int, ...] = ()
        self._tokens_in_second: Counter[int] = Counter()
        self._requests_in_second: Counter[int] = Counter()

    def and_those(self, requests: Iterable[RequestMetrics], iterations: Iterable[IterationMetrics]) -> Tally:
        """This tally and some more, as a new one."""
        tally = deepcopy(self)
        for request in requests:
            tally.add_request(request)
        for iteration in iterations:
            tally.add_iteration(iteration)
        return tally

    def add_request(self, request: RequestMetrics) -> None:
        """Count a request; one that still lives counts for the duration of the run alone."""
        if self._first_arrival_ns is None or request.arrival_ns < self._first_arrival_ns:
            self._first_arrival_ns = request.arrival_ns
        end = max(request.finished_ns or 0, request.last_token_ns or 0, request.arrival_ns)
        self._last_end_ns = max(self._last_end_ns, end)
        if not request.is_completed:
            self._failed += request.finish_reason is not None
            return
        self._completed += 1
        self._input_tokens += request.num_prompt_tokens
        self._output_tokens += request.num_output_tokens
        self._requests_in_second.update(range(request.arrival_ns // _NS_PER_S, end // _NS_PER_S + 1))
        for name, values in self._latencies_ms.items():
            latencies = [value / _NS_PER_MS for value in request.latencies_ns(name)]
            values.extend(latencies or ([math.nan] if name in OBJECTIVES else []))
        self._itls_ns.update(request.itls_ns)

    def add_iteration(self, iteration: IterationMetrics) -> None:
        """Count a step that has come to its end."""
        self._iterations += 1
        self._preemptions += iteration.preemptions
        self._queried_tokens += iteration.queried_tokens
        self._hit_tokens += iteration.hit_tokens
        self._kv_cache_usage += iteration.kv_cache_usage
        self._max_kv_cache_usage = max(self._max_kv_cache_usage, iteration.kv_cache_usage)
        self._tokens_in_second[iteration.ended_ns // _NS_PER_S] += iteration.output_tokens
        if iteration.drafted:
            self._drafted = summed([self._drafted, iteration.drafted])
            self._accepted = summed([self._accepted, iteration.accepted])

    def summarise(
        self, percentiles: Sequence[float] = (99,), goodput: Mapping[str, float] | None = None
    ) -> MetricsSummary:
        """Sum up; latencies and throughput are those of the completed requests, as in vLLM's benchmarks.

        Args:
            percentiles: which, as percentages.
            goodput: the service level objectives, in milliseconds by ttft, tpot and e2el: a request is good if it
                keeps all of them (one without a tpot, a single token, keeps that one); None: goodput is not asked for.

        Raises:
            ConfigError: a percentage beyond 0 to 100, an unknown objective or a negative one.
        """
        _require_valid(percentiles, goodput or {})
        duration_ns = self._last_end_ns - (self._first_arrival_ns or 0)
        seconds = duration_ns / _NS_PER_S if self._first_arrival_ns is not None else 0.0

        def per_second(amount: int) -> float | None:
            return amount / seconds if seconds else None

        num_verified, num_accepted = self._drafted[0] if self._drafted else 0, sum(self._accepted)
        return MetricsSummary(
            duration=seconds,
            completed=self._completed,
            failed=self._failed,
            total_input_tokens=self._input_tokens,
            total_output_tokens=self._output_tokens,
            request_throughput=per_second(self._completed),
            request_goodput=None if goodput is None else per_second(self._num_good(goodput)),
            output_throughput=per_second(self._output_tokens),
            total_token_throughput=per_second(self._input_tokens + self._output_tokens),
            max_output_tokens_per_s=max(self._tokens_in_second.values(), default=0),
            max_concurrent_requests=max(self._requests_in_second.values(), default=0),
            latencies_ms=self._distributions(percentiles),
            num_preemptions=self._preemptions,
            prefix_cache_queries=self._queried_tokens,
            prefix_cache_hits=self._hit_tokens,
            num_drafts=num_verified,
            num_draft_tokens=sum(self._drafted),
            num_accepted_tokens=num_accepted,
            mean_acceptance_length=1 + num_accepted / num_verified if num_verified else None,
            accepted_at_position=self._accepted + (0,) * (len(self._drafted) - len(self._accepted)),
            mean_kv_cache_usage=self._kv_cache_usage / self._iterations if self._iterations else None,
            max_kv_cache_usage=self._max_kv_cache_usage if self._iterations else None,
            percentiles=tuple(percentiles),
        )

    def _num_good(self, goodput: Mapping[str, float]) -> int:
        """Requests that kept all objectives; nan, for what a request does not have, is no breach."""
        kept = [[not value > limit for value in self._latencies_ms[name]] for name, limit in goodput.items()]
        return sum(map(all, zip(*kept, strict=True))) if kept else self._completed

    def _distributions(self, percentiles: Sequence[float]) -> dict[str, Distribution]:
        measured = {
            name: [value for value in values if not math.isnan(value)] for name, values in self._latencies_ms.items()
        }
        told = {name: Distribution.of(values, percentiles) for name, values in measured.items() if values}
        if self._itls_ns:
            itls_ms = {value / _NS_PER_MS: count for value, count in self._itls_ns.items()}
            told["itl"] = Distribution.of_counts(itls_ms, percentiles)
        return {name: told[name] for name in LATENCIES if name in told}


def _require_valid(percentiles: Sequence[float], goodput: Mapping[str, float]) -> None:
    for percentage in percentiles:
        if not 0 <= percentage <= 100:
            raise ConfigError(f"percentiles must lie between 0 and 100, got {percentage!r}.")
    for name, limit in goodput.items():
        if name not in OBJECTIVES:
            raise ConfigError(f"goodput takes objectives for {', '.join(OBJECTIVES)}, got one for {name!r}.")
        if not limit >= 0:
            raise ConfigError(f"The goodput objective for {name} must be at least 0 milliseconds, got {limit!r}.")
