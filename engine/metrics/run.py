"""A whole run in numbers, under the names of vLLM's benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from engine.errors import ConfigError
from engine.metrics.distribution import Distribution
from engine.metrics.iteration import IterationMetrics
from engine.metrics.per_position import summed
from engine.metrics.request import RequestMetrics

#: Latencies of a request that a service level objective can bound.
OBJECTIVES = ("ttft", "tpot", "e2el")
#: All latencies of a summary.
LATENCIES = ("ttft", "tpot", "itl", "e2el", "queue", "prefill", "decode")

_NS_PER_MS = 1e6
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The requests of a run by serial, and its steps in order."""

    requests: list[RequestMetrics]
    iterations: list[IterationMetrics]

    @property
    def duration_ns(self) -> int:
        """From the first arrival to the last token or end of a request; 0 without requests."""
        ends = (
            max(request.finished_ns or 0, request.last_token_ns or 0, request.arrival_ns) for request in self.requests
        )
        return max(ends, default=0) - min((request.arrival_ns for request in self.requests), default=0)

    @property
    def drafted(self) -> tuple[int, ...]:
        """Drafts verified, by their place among those of their request; empty without speculation."""
        return summed(iteration.drafted for iteration in self.iterations)

    @property
    def accepted(self) -> tuple[int, ...]:
        """Drafts accepted, by the same places."""
        counts = summed(iteration.accepted for iteration in self.iterations)
        return counts + (0,) * (len(self.drafted) - len(counts))

    def summarise(
        self, percentiles: Sequence[float] = (99,), goodput: Mapping[str, float] | None = None
    ) -> MetricsSummary:
        """Sum the run up; latencies and throughput are those of the completed requests, as in vLLM's benchmarks.

        Args:
            percentiles: which, as percentages.
            goodput: the service level objectives, in milliseconds by ttft, tpot and e2el: a request is good if it
                keeps all of them (one without a tpot, a single token, keeps that one); None: goodput is not asked for.

        Raises:
            ConfigError: a percentage beyond 0 to 100, an unknown objective or a negative one.
        """
        _require_valid(percentiles, goodput or {})
        completed = [request for request in self.requests if request.is_completed]
        seconds = self.duration_ns / _NS_PER_S
        total_input_tokens = sum(request.num_prompt_tokens for request in completed)
        total_output_tokens = sum(request.num_output_tokens for request in completed)

        def per_second(amount: int) -> float | None:
            return amount / seconds if seconds else None

        return MetricsSummary(
            duration=seconds,
            completed=len(completed),
            total_input_tokens=total_input_tokens,
            total_output_tokens=total_output_tokens,
            request_throughput=per_second(len(completed)),
            request_goodput=None if goodput is None else per_second(sum(is_good(each, goodput) for each in completed)),
            output_throughput=per_second(total_output_tokens),
            total_token_throughput=per_second(total_input_tokens + total_output_tokens),
            latencies_ms=_latencies_ms(completed, percentiles),
            num_preemptions=sum(iteration.preemptions for iteration in self.iterations),
            prefix_cache_queries=sum(iteration.queried_tokens for iteration in self.iterations),
            prefix_cache_hits=sum(iteration.hit_tokens for iteration in self.iterations),
            num_drafts=self.drafted[0] if self.drafted else 0,
            num_draft_tokens=sum(self.drafted),
            num_accepted_tokens=sum(self.accepted),
            mean_acceptance_length=1 + sum(self.accepted) / self.drafted[0] if self.drafted else None,
            mean_kv_cache_usage=_mean([iteration.kv_cache_usage for iteration in self.iterations]),
            max_kv_cache_usage=max((iteration.kv_cache_usage for iteration in self.iterations), default=None),
            percentiles=tuple(percentiles),
        )


@dataclass(frozen=True, slots=True)
class MetricsSummary:
    """A run summed up; a value that nothing was measured for is None."""

    duration: float
    """Seconds from the first arrival to the last end."""
    completed: int
    """Requests that came to their own end: neither aborted nor failed."""
    total_input_tokens: int
    """Prompt tokens of the completed requests."""
    total_output_tokens: int
    """Output tokens of the completed requests."""
    request_throughput: float | None
    """Completed requests per second."""
    request_goodput: float | None
    """Completed requests per second that kept all service level objectives; None unless asked for."""
    output_throughput: float | None
    """Output tokens per second."""
    total_token_throughput: float | None
    """Prompt and output tokens per second."""
    latencies_ms: dict[str, Distribution]
    """Milliseconds by name, see `LATENCIES`; one that no request has is left out."""
    num_preemptions: int
    prefix_cache_queries: int
    """Tokens for which the prefix cache was asked at an admission."""
    prefix_cache_hits: int
    """Of these, the tokens found."""
    num_drafts: int
    """Times that a request had drafts verified."""
    num_draft_tokens: int
    num_accepted_tokens: int
    mean_acceptance_length: float | None
    """Tokens that a request got for each verification: the drafts accepted, and one more; None without drafts."""
    mean_kv_cache_usage: float | None
    """Share of the usable blocks in use, averaged over the steps."""
    max_kv_cache_usage: float | None
    percentiles: tuple[float, ...]

    def as_dict(self) -> dict[str, float | None]:
        """Flat, under vLLM's names: `mean_ttft_ms`, `median_ttft_ms`, `std_ttft_ms`, `p99_ttft_ms`, …"""
        named: dict[str, float | None] = {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name not in ("latencies_ms", "percentiles")
        }
        for latency in LATENCIES:
            values = self.latencies_ms.get(latency)
            for statistic in ("mean", "median", "std"):
                named[f"{statistic}_{latency}_ms"] = getattr(values, statistic, None)
            for percentage in self.percentiles:
                named[f"p{percentage:g}_{latency}_ms"] = values.percentiles[percentage] if values else None
        return named


def is_good(request: RequestMetrics, goodput: Mapping[str, float]) -> bool:
    """Whether a request kept all service level objectives, in milliseconds by name."""
    return all(value / _NS_PER_MS <= limit for name, limit in goodput.items() for value in request.latencies_ns(name))


def _latencies_ms(requests: list[RequestMetrics], percentiles: Sequence[float]) -> dict[str, Distribution]:
    values_ms = {
        name: [value / _NS_PER_MS for request in requests for value in request.latencies_ns(name)] for name in LATENCIES
    }
    return {name: Distribution.of(values, percentiles) for name, values in values_ms.items() if values}


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _require_valid(percentiles: Sequence[float], goodput: Mapping[str, float]) -> None:
    for percentage in percentiles:
        if not 0 <= percentage <= 100:
            raise ConfigError(f"percentiles must lie between 0 and 100, got {percentage!r}.")
    for name, limit in goodput.items():
        if name not in OBJECTIVES:
            raise ConfigError(f"goodput takes objectives for {', '.join(OBJECTIVES)}, got one for {name!r}.")
        if not limit >= 0:
            raise ConfigError(f"The goodput objective for {name} must be at least 0 milliseconds, got {limit!r}.")
