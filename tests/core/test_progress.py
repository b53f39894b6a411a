"""Progress in the smallest pool that is allowed: just one request of full length, and not a block more."""

from __future__ import annotations

import pytest

from tests.core.driver import MAX_MODEL_LEN, make_core, request, run_step


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("caching", [True, False])
def test_requests_that_each_need_the_whole_pool_finish_one_after_the_other(
    policy: str, block_size: int, caching: bool
) -> None:
    core = make_core(
        num_blocks=MAX_MODEL_LEN // block_size + 1,
        block_size=block_size,
        policy=policy,
        enable_prefix_caching=caching,
        max_num_batched_tokens=16,
    )
    for number in range(3):
        core.add(request(str(number), [10 * number + 7] * 30, number, max_tokens=None, ignore_eos=True))
    lives = list(core.requests.values())
    steps = 0
    while core.has_unfinished_requests():
        assert run_step(core).rows, "a step without rows would go on for ever"
        steps += 1
        assert steps < 3 * 2 * MAX_MODEL_LEN
    assert [live.num_tokens for live in lives] == [MAX_MODEL_LEN] * 3
    assert sum(live.num_preemptions for live in lives) > 0
    assert core.scheduler.kv_cache_manager.block_pool.num_blocks_in_use == 0


def test_those_behind_a_request_that_is_refused_run_all_the_same() -> None:
    core = make_core(num_blocks=17)
    with pytest.raises(ValueError, match="between 1 and 63 tokens, got 80"):
        core.add(request("too long", [1] * 80))
    core.add(request("fits", [1] * 10, max_tokens=1))
    assert [row.request_id for row in run_step(core).rows] == ["fits"]
