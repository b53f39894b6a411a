"""Prefix-cache statistics: who counts, when, and how long."""

from __future__ import annotations

from engine.core.engine_core import EngineCore
from engine.core.kv_cache.stats import MAX_RECENT_REQUESTS, CachingMetrics
from tests.core.driver import make_core, request, run_step


def finish_all(core: EngineCore) -> None:
    while core.has_unfinished_requests():
        run_step(core)


def test_tokens_asked_for_and_tokens_found_are_counted_at_admission() -> None:
    core = make_core()
    for name in ("a", "b"):
        core.add(request(name, [*range(10, 20)], max_tokens=3))
        finish_all(core)
    stats = core.make_prefix_cache_stats()
    assert (stats.requests, stats.queries, stats.hits) == (2, 20, 8)
    assert (stats.recent_requests, stats.recent_queries, stats.recent_hits) == (2, 20, 8)
    assert stats.hit_rate == stats.recent_hit_rate == 0.4
    assert stats.preempted_requests == 0


def test_a_request_that_waits_for_blocks_counts_once() -> None:
    core = make_core(num_blocks=17)
    core.add(request("a", [*range(10, 50)], max_tokens=6))
    core.add(request("b", [*range(50, 90)], max_tokens=2))
    for _ in range(4):
        assert [row.request_id for row in run_step(core).rows] == ["a"]
    assert core.make_prefix_cache_stats().requests == 1
    finish_all(core)
    assert core.make_prefix_cache_stats().requests == 2


def test_resumed_requests_are_counted_apart() -> None:
    core = make_core(num_blocks=17)
    for name, first in (("a", 10), ("b", 50)):
        core.add(request(name, [*range(first, first + 28)], max_tokens=16, ignore_eos=True))
    finish_all(core)
    stats = core.make_prefix_cache_stats()
    assert (stats.requests, stats.queries, stats.hits) == (2, 56, 0)
    assert stats.preempted_requests > 0
    assert 0 < stats.preempted_hits < stats.preempted_queries


def test_without_prefix_caching_nothing_is_asked() -> None:
    core = make_core(enable_prefix_caching=False)
    core.add(request("a", [*range(10, 20)], max_tokens=1))
    finish_all(core)
    stats = core.make_prefix_cache_stats()
    assert (stats.requests, stats.hit_rate, stats.recent_hit_rate) == (0, 0.0, 0.0)


def test_a_reset_begins_anew_and_a_refused_one_does_not() -> None:
    core = make_core()
    core.add(request("a", [*range(10, 20)], max_tokens=2))
    run_step(core)
    assert not core.reset_prefix_cache()
    assert core.make_prefix_cache_stats().requests == 1
    finish_all(core)
    assert core.reset_prefix_cache()
    assert core.make_prefix_cache_stats().requests == 0


def test_the_recent_rate_forgets_what_is_long_past() -> None:
    metrics = CachingMetrics(max_recent_requests=3)
    for num_hits in (0, 0, 10, 10, 10):
        metrics.observe(10, num_hits, preempted=False)
        metrics.observe(50, 50, preempted=True)
    stats = metrics.stats()
    assert (stats.requests, stats.hit_rate) == (5, 0.6)
    assert (stats.recent_requests, stats.recent_hit_rate) == (3, 1.0)
    assert (stats.preempted_requests, stats.preempted_queries) == (5, 250)
    assert MAX_RECENT_REQUESTS == 1000
