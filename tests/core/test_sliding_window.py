"""KV cache groups with a sliding window, alone and beside full attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import KVCacheGroup
from engine.core.kv_cache.block import KVCacheBlock
from engine.core.kv_cache.block_hash import BlockHash
from engine.core.kv_cache.block_pool import BlockPool
from engine.core.kv_cache.coordinator import KVCacheCoordinator
from engine.core.kv_cache.sliding_window import SlidingWindowGroup
from engine.errors import ConfigError
from engine.trace import events as ev
from engine.trace.file import Trace
from sim.invariants import check_trace
from sim.replay import replay
from sim.state import State
from tests.core.driver import (
    FULL,
    MAX_MODEL_LEN,
    DiceConnector,
    core_of,
    header,
    make_core,
    record_crowd,
    request,
    run_step,
    window_of,
)

HASHES = [BlockHash(bytes([number]), (number,)) for number in range(8)]


def cache(pool: BlockPool, group: int, places: list[int]) -> dict[int, KVCacheBlock]:
    """Blocks that hold these places of a prompt."""
    blocks = dict(zip(places, pool.get_new_blocks(len(places))[0], strict=True))
    for place, block in blocks.items():
        pool.cache_full_blocks([block], [HASHES[place]], group)
    return blocks


def places(hit: list[KVCacheBlock], pool: BlockPool) -> list[int | None]:
    """Which place of the prompt each block of a hit holds; None for the null block."""
    return [None if block is pool.null_block else HASHES.index(block.block_hash or HASHES[0]) for block in hit]


@pytest.mark.parametrize(
    ("window", "cached", "found"),
    [
        # Blocks of 4 tokens: a window of 9 sees two whole blocks behind the next token, one of 6 a part of the second.
        (9, [0, 1, 2, 3, 4, 5], [None, None, None, None, 4, 5]),
        (9, [0, 1, 3, 4], [None, None, None, 3, 4]),
        (9, [2, 5], []),
        (9, [0, 3, 5], [0]),
        (9, [0, 1, 3], [0, 1]),
        (6, [1, 2, 4], [None, 1, 2]),
        (5, [4], [None, None, None, None, 4]),
        (2, [1], [None, 1]),
        (100, [0, 1, 2, 4, 5], [0, 1, 2]),
        (9, [], []),
    ],
)
def test_a_hit_needs_the_blocks_that_the_next_token_sees(
    window: int, cached: list[int], found: list[int | None]
) -> None:
    pool = BlockPool(20)
    group = SlidingWindowGroup(0, 4, pool, window, num_dropped_hit_blocks=0)
    cache(pool, 0, cached)
    assert places(group.find_longest_cache_hit(HASHES, 6), pool) == found


def coordinator_of(pool: BlockPool, *groups: KVCacheGroup, num_dropped_hit_blocks: int = 0) -> KVCacheCoordinator:
    return KVCacheCoordinator(groups, 4, pool, num_dropped_hit_blocks)


@pytest.mark.parametrize(
    ("full", "windowed", "num_blocks"),
    [
        ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4], 5),
        ([0, 1, 2, 3, 4], [3, 4], 5),
        ([0, 1, 2, 3], [3, 4], 0),  # full attention shortens, and the window finds nothing before it
        ([0, 1, 2, 3], [1, 2, 4, 5], 3),  # … or finds something
        ([0, 1, 2, 4], [0, 2, 3, 4], 1),
        ([], [0, 1, 2], 0),
    ],
)
def test_all_groups_agree_on_a_prefix(full: list[int], windowed: list[int], num_blocks: int) -> None:
    for turned in (False, True):  # in whichever order they are asked
        pool = BlockPool(30, num_groups=2)
        specs = (window_of(9), FULL) if turned else (FULL, window_of(9))
        coordinator = coordinator_of(pool, *specs)
        cache(pool, int(turned), full)
        cache(pool, int(not turned), windowed)
        hits = coordinator.find_longest_cache_hit(HASHES, 24)
        assert [len(hit) for hit in hits] == [num_blocks, num_blocks]
        assert places(hits[int(turned)], pool) == [*range(num_blocks)]
        seen = places(hits[int(not turned)], pool)
        assert seen == [None] * (num_blocks - 2) + [*range(max(0, num_blocks - 2), num_blocks)]


def test_two_windows_find_a_prefix_that_suits_both() -> None:
    pool = BlockPool(30, num_groups=2)
    coordinator = coordinator_of(pool, window_of(5), window_of(13))
    cache(pool, 0, [1, 3, 5])
    cache(pool, 1, [1, 2, 3, 5])
    hits = coordinator.find_longest_cache_hit(HASHES, 24)
    assert [places(hit, pool) for hit in hits] == [[None, None, None, 3], [None, 1, 2, 3]]


def test_what_is_left_of_a_hit_whose_last_block_is_dropped_suffices() -> None:
    pool = BlockPool(30, num_groups=2)
    coordinator = coordinator_of(pool, FULL, window_of(9), num_dropped_hit_blocks=1)
    cache(pool, 0, [0, 1, 2, 3, 4])
    cache(pool, 1, [1, 2, 3, 4])
    hits = coordinator.find_longest_cache_hit(HASHES, 24)
    assert [places(hit, pool) for hit in hits] == [[0, 1, 2, 3], [None, None, 2, 3]]


def test_a_group_finds_only_its_own_blocks() -> None:
    pool = BlockPool(30, num_groups=2)
    coordinator = coordinator_of(pool, FULL, window_of(9))
    cache(pool, 0, [0, 1, 2])
    assert coordinator.find_longest_cache_hit(HASHES, 24) == [[], []]


def test_blocks_are_freed_as_the_window_moves_on() -> None:
    core = make_core(groups=(window_of(6),))
    core.add(request("a", [*range(10, 20)], max_tokens=20, ignore_eos=True))
    held: list[list[int]] = []
    for _ in range(8):
        run_step(core)
        held.append(
            [block.block_id for block in core.scheduler.kv_cache_manager.coordinator.groups[0].req_to_blocks[0]]
        )
    # The prompt of 10 takes three blocks. Token 10 sees 5 to 10, so block 0 goes; token 13 sees 8 to 13, so block 1.
    assert held == [[1, 2, 3], [0, 2, 3], [0, 2, 3], [0, 2, 3, 4], [0, 0, 3, 4]] + [[0, 0, 3, 4]] * 2 + [
        [0, 0, 3, 4, 5]
    ]
    pool = core.scheduler.kv_cache_manager.block_pool
    assert pool.num_blocks_in_use == 3
    core.abort(["a"])
    assert pool.num_blocks_in_use == 0


def test_a_long_request_runs_in_a_pool_that_its_window_fits_into() -> None:
    # (6 - 1 + 8) tokens and a part of a block before them: 5 blocks, where full attention would need 16.
    core = make_core(num_blocks=6, groups=(window_of(6),), max_num_batched_tokens=8)
    core.add(request("a", [*range(10, 50)], max_tokens=24, ignore_eos=True))
    num_steps = 0
    while core.has_unfinished_requests():
        run_step(core)
        num_steps += 1
    assert num_steps == 5 + 23
    with pytest.raises(ConfigError, match="needs 5 KV cache blocks of 4, but the pool has 4 usable ones"):
        make_core(num_blocks=5, groups=(window_of(6),), max_num_batched_tokens=8)


def test_the_room_that_is_asked_for_counts_every_group() -> None:
    groups = (FULL, window_of(6))
    make_core(num_blocks=1 + 16 + 5, groups=groups, max_num_batched_tokens=8)
    with pytest.raises(ConfigError, match=r"needs 21 KV cache blocks .* or lower max_model_len to 60"):
        make_core(num_blocks=1 + 16 + 4, groups=groups, max_num_batched_tokens=8)


def test_a_block_that_the_window_has_passed_is_revived_by_a_hit() -> None:
    core = make_core(groups=(window_of(6),))
    core.add(request("a", [*range(10, 22)], max_tokens=20, ignore_eos=True))
    for _ in range(3):
        run_step(core)
    pool = core.scheduler.kv_cache_manager.block_pool
    assert pool.blocks[1].ref_count == 0
    core.add(request("b", [*range(10, 14), 77, 78], max_tokens=2))
    plan = run_step(core)
    assert (plan.rows[1].num_computed_tokens, plan.rows[1].block_ids[0][0]) == (4, 1)
    assert pool.blocks[1].ref_count == 1


def test_a_hit_takes_only_what_is_seen_of_it() -> None:
    core = make_core(num_blocks=40, groups=(FULL, window_of(6)))
    core.add(request("a", [*range(10, 30)], max_tokens=1))
    run_step(core)
    core.add(request("b", [*range(10, 30)], max_tokens=1))
    plan = core.schedule()
    full, windowed = plan.rows[0].block_ids
    assert plan.rows[0].num_computed_tokens == 16
    assert 0 not in full
    assert windowed[:2] == [0, 0]
    assert 0 not in windowed[2:]


def test_a_connector_has_no_part_in_sliding_windows() -> None:
    with pytest.raises(ConfigError, match="this model has sliding windows"):
        core_of(header(num_blocks=40, groups=(FULL, window_of(6))), kv_connector=DiceConnector(0))


def test_a_window_of_one_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="sliding_window must be an integer >= 2, got 1"):
        window_of(1)


GROUPS = {
    "window": (window_of(6),),
    "small window": (window_of(2),),
    "wide window": (window_of(24),),
    "hybrid": (FULL, window_of(7)),
    "two windows": (window_of(3), window_of(10)),
    "three groups": (FULL, window_of(5), window_of(5)),
}
ENGINE_ARGS: list[dict[str, Any]] = [
    {},
    {"policy": "priority", "prefix_caching_hash_algo": "builtin"},
    {"enable_prefix_caching": False},
    {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    {"speculative_config": {"method": "eagle", "num_speculative_tokens": 5}},
]


@pytest.mark.parametrize("engine_args", ENGINE_ARGS, ids=str)
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_a_crowd_keeps_every_invariant_and_replays(
    groups: tuple[KVCacheGroup, ...], engine_args: dict[str, Any], tmp_path: Path
) -> None:
    trace = record_crowd(tmp_path / "crowd.jsonl", groups=groups, num_blocks=smallest_pool(groups), **engine_args)
    assert check_trace(trace) == []
    assert replay(trace).num_divergences == 0
    kinds = {type(event) for event in trace.events}
    assert ev.SchedulePreempted in kinds
    assert any(event.by_window for event in trace.events if isinstance(event, ev.KVFreed))
    if engine_args.get("enable_prefix_caching", True):
        assert any(event.num_hit_tokens for event in trace.events if isinstance(event, ev.KVLookup))


def smallest_pool(groups: tuple[KVCacheGroup, ...]) -> int:
    """Blocks for one request of full length, and three more so that others come between."""
    return 1 + sum(group.most_blocks(4, MAX_MODEL_LEN, 16 + 5) for group in groups) + 3


def test_the_blocks_of_a_request_stay_within_its_window(tmp_path: Path) -> None:
    trace = record_crowd(tmp_path / "crowd.jsonl", groups=(window_of(6),), num_requests=40)
    assert most_held(trace) <= -(-(6 - 1 + 16) // 4) + 1 < MAX_MODEL_LEN // 4


def most_held(trace: Trace) -> int:
    """Most blocks that one request held at once."""
    state, most = State.initial(trace.header), 0
    for event in trace.events:
        state.apply(event)
        if isinstance(event, ev.KVAllocated):
            table = state.requests[event.request].block_ids[event.group]
            most = max(most, sum(block_id != 0 for block_id in table))
    return most
