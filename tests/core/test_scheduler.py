"""The scheduler and the surface of the core: budget, queues, chunks, preemption, stops, aborts, failures."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.engine_core import EngineCore
from engine.core.messages import EngineCoreOutput, ForwardFailure, ModelRunnerOutput
from engine.core.scheduler.wanted import tokens_wanted
from engine.errors import ConfigError, RequestError
from tests.core.driver import EOS, MAX_MODEL_LEN, Crowd, answer, make_core, request, run_step


def rows(core: EngineCore) -> list[tuple[str, int]]:
    return [(row.request_id, row.num_scheduled_tokens) for row in run_step(core).rows]


def collect(core: EngineCore, token: int = 9, steps: int = 200) -> dict[str, list[EngineCoreOutput]]:
    news: dict[str, list[EngineCoreOutput]] = {}
    for _ in range(steps):
        if not core.has_unfinished_requests():
            return news
        plan = core.schedule()
        if plan.rows:
            for output in core.update(plan.step, answer(core, plan, [token] * len(plan.rows))).outputs:
                news.setdefault(output.request_id, []).append(output)
    raise AssertionError(f"not finished after {steps} steps")


@given(st.integers(1, 500), st.integers(0, 500), st.integers(1, 300), st.integers(0, 100), st.integers(501, 600))
def test_tokens_wanted_is_the_rest_cut_by_the_limits(
    total: int, done: int, budget: int, threshold: int, length: int
) -> None:
    done = min(done, total - 1)
    wanted = tokens_wanted(total, done, budget, threshold, length)
    assert wanted.num_wanted_tokens == total - done
    assert wanted.num_tokens == min(total - done, budget, threshold or budget, length - 1 - done)
    assert (wanted.truncated_by is None) == (wanted.num_tokens == wanted.num_wanted_tokens)


def test_running_requests_come_first_and_both_kinds_share_a_step() -> None:
    core = make_core(max_num_batched_tokens=16)
    core.add(request("a", [*range(10, 15)], max_tokens=9))
    assert rows(core) == [("a", 5)]
    core.add(request("b", [*range(30, 60)], max_tokens=9))
    assert rows(core) == [("a", 1), ("b", 15)]
    assert rows(core) == [("a", 1), ("b", 15)]
    assert rows(core) == [("a", 1), ("b", 1)]


def test_a_long_prompt_is_chunked_by_the_threshold() -> None:
    core = make_core(max_num_batched_tokens=64, long_prefill_token_threshold=8)
    core.add(request("a", [*range(10, 28)], max_tokens=1))
    assert [rows(core) for _ in range(3)] == [[("a", 8)], [("a", 8)], [("a", 2)]]
    assert not core.has_unfinished_requests()


def test_no_more_than_max_num_seqs_run() -> None:
    core = make_core(max_num_seqs=2)
    for name in "abc":
        core.add(request(name, [ord(name)] * 3, max_tokens=2))
    assert rows(core) == [("a", 3), ("b", 3)]
    assert rows(core) == [("a", 1), ("b", 1)]
    assert rows(core) == [("c", 3)]


def test_priority_serves_the_lower_number_first_then_arrival() -> None:
    core = make_core(policy="priority", max_num_seqs=1)
    for name, priority in (("a", 5), ("b", 1), ("c", 1)):
        core.add(request(name, [ord(name)] * 3, priority, max_tokens=1))
    assert [rows(core)[0][0] for _ in range(3)] == ["b", "c", "a"]


def preempting_core(policy: str) -> EngineCore:
    """Three requests fill the pool: 17 usable blocks of 4 tokens, 20 tokens each, then decodes."""
    core = make_core(num_blocks=18, policy=policy, enable_prefix_caching=False)
    for name, priority in (("a", 9), ("b", 1), ("c", 1)):
        core.add(request(name, [ord(name)] * 20, priority, max_tokens=30))
    run_step(core)
    return core


def test_fcfs_preempts_the_last_and_recomputes_its_output_too() -> None:
    core = preempting_core("fcfs")
    while len(core.scheduler.running) == 3:
        run_step(core)
    assert [r.request_id for r in core.scheduler.waiting] == ["c"]
    victim = core.requests["c"]
    had = victim.num_output_tokens
    assert victim.num_computed_tokens == 0 and had > 0
    core.abort(["a", "b"])
    (row,) = run_step(core).rows
    assert row.new is not None and row.new.token_ids == [ord("c")] * 20 + [9] * had
    assert row.num_scheduled_tokens == 20 + had
    assert victim.num_output_tokens == had + 1


def test_priority_preempts_the_least_urgent_even_if_it_was_scheduled_already() -> None:
    core = preempting_core("priority")
    assert [r.request_id for r in core.scheduler.running] == ["b", "c", "a"]
    core.scheduler.running.sort(key=lambda r: r.serial)  # "a", the least urgent, is now scheduled first in each step
    while len(core.scheduler.running) == 3:
        plan = run_step(core)
    assert [r.request_id for r in core.scheduler.waiting] == ["a"]
    assert [row.request_id for row in plan.rows] == ["b", "c"]


def test_nothing_new_is_admitted_in_a_step_that_preempted() -> None:
    core = preempting_core("fcfs")
    core.add(request("d", [1], max_tokens=1))
    while len(core.scheduler.running) == 3:
        plan = run_step(core)
        assert "d" not in {row.request_id for row in plan.rows}


@pytest.mark.parametrize(
    ("token", "params", "reason", "stop_reason", "length"),
    [
        (9, {"max_tokens": 3}, "length", None, 3),
        (9, {"max_tokens": None}, "length", None, MAX_MODEL_LEN - 2),
        (EOS, {"max_tokens": 3}, "stop", None, 1),
        (EOS, {"max_tokens": 3, "ignore_eos": True}, "length", None, 3),
        (EOS, {"max_tokens": 1}, "length", None, 1),
        (5, {"max_tokens": 3, "stop_token_ids": [5]}, "stop", 5, 1),
        (EOS, {"max_tokens": 3, "stop_token_ids": [EOS]}, "stop", None, 1),
        (EOS, {"max_tokens": 3, "stop_token_ids": [EOS], "ignore_eos": True}, "stop", EOS, 1),
        (EOS, {"max_tokens": 4, "min_tokens": 2}, "stop", None, 2),
    ],
)
def test_stops_in_their_order(
    token: int, params: dict[str, Any], reason: str, stop_reason: int | None, length: int
) -> None:
    core = make_core()
    core.add(request("a", [10, 11], **params))
    news = collect(core, token)["a"]
    assert (news[-1].finish_reason, news[-1].stop_reason) == (reason, stop_reason)
    assert sum(len(output.new_token_ids) for output in news) == length


def test_tokens_behind_a_stop_are_cut() -> None:
    core = make_core()
    core.add(request("a", [10, 11], max_tokens=3))
    plan = core.schedule()
    output = ModelRunnerOutput(step=plan.step, serials=[0], sampled_token_ids=[[7, EOS, 8]])
    (news,) = core.update(plan.step, output).outputs
    assert news.new_token_ids == [7, EOS]


def test_an_id_is_refused_while_alive_and_free_afterwards() -> None:
    core = make_core()
    core.add(request("a", [1, 2], max_tokens=1))
    with pytest.raises(RequestError, match="'a' belongs to a request that is still running"):
        core.add(request("a", [1, 2]))
    collect(core)
    assert core.add(request("a", [1, 2])) == 1


@pytest.mark.parametrize("length", [0, MAX_MODEL_LEN, MAX_MODEL_LEN + 1])
def test_a_prompt_without_room_is_refused(length: int) -> None:
    core = make_core()
    with pytest.raises(RequestError, match=f"between 1 and {MAX_MODEL_LEN - 1} tokens, got {length}"):
        core.add(request("a", [1] * length))
    assert not core.has_unfinished_requests()


def test_a_pool_too_small_for_one_request_is_refused() -> None:
    make_core(num_blocks=17)
    with pytest.raises(ConfigError, match="needs 16 KV cache blocks of 4, but the pool has 15 usable"):
        make_core(num_blocks=16)


def test_output_of_a_request_aborted_in_flight_is_dropped() -> None:
    core = make_core()
    core.add(request("a", [1, 2, 3]))
    plan = core.schedule()
    output = answer(core, plan, [9])
    assert core.abort(["a", "nobody"]) == ["a"]
    core.add(request("a", [5, 6], max_tokens=2))
    assert core.update(plan.step, output).outputs == []
    assert core.requests["a"].num_output_tokens == 0
    assert len(collect(core)["a"]) == 2


def test_output_of_a_request_preempted_in_flight_is_kept_until_it_is_resumed() -> None:
    core = preempting_core("fcfs")
    plans = []
    while len(core.scheduler.running) == 3:  # steps n and n + 1 are both in flight, as in an asynchronous loop
        plan = core.schedule()
        plans.append((plan, answer_any(plan)))
        if len(plans) > 1:
            core.update(plans[0][0].step, plans.pop(0)[1])
    victim = core.requests["c"]
    before = victim.num_output_tokens
    core.update(plans[0][0].step, plans[0][1])
    kept = any(row.request_id == "c" for row in plans[0][0].rows)
    assert victim.num_output_tokens == before + kept
    assert victim.num_computed_tokens == 0


def answer_any(plan: object) -> ModelRunnerOutput:
    rows = plan.rows  # type: ignore[attr-defined]
    return ModelRunnerOutput(
        step=plan.step,  # type: ignore[attr-defined]
        serials=[row.serial for row in rows],
        sampled_token_ids=[[9] for _ in rows],
    )


def test_an_answer_of_another_step_is_refused() -> None:
    core = make_core()
    core.add(request("a", [1, 2, 3]))
    plan = core.schedule()
    with pytest.raises(ValueError, match="in flight: \\[1\\]"):
        core.update(7, ModelRunnerOutput(step=7, serials=[0], sampled_token_ids=[[1]]))
    with pytest.raises(ValueError, match="its output names \\[4\\]"):
        core.update(plan.step, ModelRunnerOutput(step=plan.step, serials=[4], sampled_token_ids=[[1]]))
    core.update(plan.step, ModelRunnerOutput(step=plan.step, serials=[0], sampled_token_ids=[[1]]))


def test_a_failed_forward_ends_its_requests_and_withdraws_their_hashes() -> None:
    core = make_core()
    prompt = [*range(10, 22)]
    core.add(request("a", prompt, max_tokens=4))
    plan = core.schedule()
    (news,) = core.update(plan.step, ForwardFailure(step=plan.step, why="out of memory")).outputs
    assert (news.finish_reason, news.error) == ("error", "out of memory")
    core.add(request("b", [*prompt, 1], max_tokens=1))
    (row,) = run_step(core).rows
    assert row.num_computed_tokens == 0, "nobody wrote the KV that the hashes promised"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["fcfs", "priority"]), st.booleans())
def test_a_crowd_leaves_nothing_behind(seed: int, policy: str, caching: bool) -> None:
    core = make_core(
        max_num_batched_tokens=16, max_num_seqs=6, policy=policy, enable_prefix_caching=caching, num_blocks=20
    )
    Crowd(seed, num_requests=20).drive(core)
    manager = core.scheduler.kv_cache_manager
    assert manager.block_pool.num_blocks_in_use == 0
    assert all(block.ref_count == 0 for block in manager.block_pool.blocks)
    assert not manager.req_to_block_hashes and not core.scheduler.running and not core.scheduler.waiting
    assert all(not group.req_to_blocks and not group.num_cached_blocks for group in manager.coordinator.groups)
