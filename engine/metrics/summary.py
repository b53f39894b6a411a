"""`MetricsSummary`: a run as a handful of numbers, under the names of vLLM's benchmarks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from engine.metrics.distribution import Distribution

#: Latencies of a request that a service level objective can bound.
OBJECTIVES = ("ttft", "tpot", "e2el")
#: All latencies of a summary.
LATENCIES = ("ttft", "tpot", "itl", "e2el", "queue", "prefill", "decode")

#: Fields that have another form in JSON.
_NOT_PLAIN = {
    "latencies_ms",
    "percentiles",
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "mean_acceptance_length",
    "accepted_at_position",
}


@dataclass(frozen=True, slots=True)
class MetricsSummary:
    """A run summed up; a value that nothing was measured for is None."""

    duration: float
    """Seconds from the first arrival to the last end."""
    completed: int
    """Requests that came to their own end: neither aborted nor failed."""
    failed: int
    """Requests that came to another end."""
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
    max_output_tokens_per_s: int
    """Output tokens in the best second of the clock."""
    max_concurrent_requests: int
    """Completed requests that were alive in the fullest second of the clock."""
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
    accepted_at_position: tuple[int, ...]
    """Drafts accepted, by their place among those of their request; empty without drafts."""
    mean_kv_cache_usage: float | None
    """Share of the usable blocks in use, averaged over the steps."""
    max_kv_cache_usage: float | None
    percentiles: tuple[float, ...]

    @property
    def prefix_cache_hit_rate(self) -> float | None:
        """Share of the tokens asked for that the prefix cache had; None if it was never asked."""
        return self.prefix_cache_hits / self.prefix_cache_queries if self.prefix_cache_queries else None

    def to_json(self) -> dict[str, Any]:
        """Flat, under the keys of vLLM's `bench serve`: `mean_ttft_ms`, `p99_ttft_ms`, … and of drafts, if there are
        any, `spec_decode_acceptance_length`, …; what vLLM does not report comes under the names of the fields."""
        named = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _NOT_PLAIN}
        named["prefix_cache_hit_rate"] = self.prefix_cache_hit_rate
        for latency in LATENCIES:
            values = self.latencies_ms.get(latency)
            for statistic in ("mean", "median", "std"):
                named[f"{statistic}_{latency}_ms"] = getattr(values, statistic, None)
            for percentage in self.percentiles:
                named[f"p{percentage:g}_{latency}_ms"] = values.percentiles[percentage] if values else None
        return named | (self._drafts_to_json() if self.num_drafts else {})

    def _drafts_to_json(self) -> dict[str, Any]:
        """vLLM's keys, of which the rate is a percentage and those by position are shares."""
        return {
            "spec_decode_acceptance_rate": 100 * self.num_accepted_tokens / self.num_draft_tokens,
            "spec_decode_acceptance_length": self.mean_acceptance_length,
            "spec_decode_num_drafts": self.num_drafts,
            "spec_decode_draft_tokens": self.num_draft_tokens,
            "spec_decode_accepted_tokens": self.num_accepted_tokens,
            "spec_decode_per_position_acceptance_rates": [
                accepted / self.num_drafts for accepted in self.accepted_at_position
            ],
        }
