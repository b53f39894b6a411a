"""How much of what was asked of the prefix cache it had."""

from __future__ import annotations

from collections import deque

import msgspec

#: Requests over which the recent hit rate is taken.
MAX_RECENT_REQUESTS = 1000


class PrefixCacheStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the engine's start, or since the prefix cache was last reset. Queries and hits are tokens.

    A request counts when it is admitted, once; when it is resumed after a preemption, it finds what it has left
    behind itself, and is counted apart.
    """

    requests: int
    queries: int
    """Tokens of these requests."""
    hits: int
    """Those of them whose KV was found."""
    preempted_requests: int
    preempted_queries: int
    preempted_hits: int
    recent_requests: int
    """Of `requests`, the newest, 1,000 at most."""
    recent_queries: int
    recent_hits: int

    @property
    def hit_rate(self) -> float:
        """Share of the tokens that were found; 0 if there were none."""
        return self.hits / self.queries if self.queries else 0.0

    @property
    def recent_hit_rate(self) -> float:
        """The same over the most recent requests."""
        return self.recent_hits / self.recent_queries if self.recent_queries else 0.0


class CachingMetrics:
    """Counts admissions as they come."""

    def __init__(self, max_recent_requests: int = MAX_RECENT_REQUESTS) -> None:
        self._max_recent_requests = max_recent_requests
        self.reset()

    def observe(self, num_tokens: int, num_hits: int, *, preempted: bool) -> None:
        """A request of `num_tokens` tokens has been admitted, `num_hits` of them from the cache."""
        count = self._preempted if preempted else self._all
        count.add(num_tokens, num_hits)
        if preempted:
            return
        self._query_queue.append((num_tokens, num_hits))
        self._recent.add(num_tokens, num_hits)
        if len(self._query_queue) > self._max_recent_requests:
            self._recent.take_away(*self._query_queue.popleft())

    def reset(self) -> None:
        """Begin anew: the prefix cache was reset."""
        self._all, self._preempted, self._recent = _Count(), _Count(), _Count()
        self._query_queue: deque[tuple[int, int]] = deque()

    def stats(self) -> PrefixCacheStats:
        """The counts as they are now."""
        return PrefixCacheStats(
            requests=self._all.requests,
            queries=self._all.queries,
            hits=self._all.hits,
            preempted_requests=self._preempted.requests,
            preempted_queries=self._preempted.queries,
            preempted_hits=self._preempted.hits,
            recent_requests=self._recent.requests,
            recent_queries=self._recent.queries,
            recent_hits=self._recent.hits,
        )


class _Count:
    __slots__ = ("hits", "queries", "requests")

    def __init__(self) -> None:
        self.requests = self.queries = self.hits = 0

    def add(self, num_tokens: int, num_hits: int) -> None:
        self.requests += 1
        self.queries += num_tokens
        self.hits += num_hits

    def take_away(self, num_tokens: int, num_hits: int) -> None:
        self.requests -= 1
        self.queries -= num_tokens
        self.hits -= num_hits
