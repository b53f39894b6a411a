"""Several steps in flight: the next step is planned before the tokens of the last one are known."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest

from engine.core.engine_core import EngineCore
from engine.core.messages import ForwardFailure, ModelRunnerOutput, SchedulerOutput
from engine.trace.events import Event, SchedulePreempted
from sim.invariants import InvariantChecker
from tests.core.driver import core_of, header, make_core, request


class Watcher:
    """Checks every invariant as the events come, and counts preemptions."""

    def __init__(self, **engine_args: Any) -> None:
        self.step = self.seq = self.preemptions = 0
        self.checker = InvariantChecker(header(**engine_args))

    def emit(self, event: Event) -> None:
        self.seq += 1
        event.seq, event.step = self.seq, self.step
        self.preemptions += isinstance(event, SchedulePreempted)
        assert self.checker.feed(event) == []


def token(serial: int, position: int) -> int:
    """What the imaginary model says at a position: 2 is its EOS."""
    return random.Random(serial * 1000 + position).randrange(2, 40)


def answer(core: EngineCore, plan: SchedulerOutput, known: dict[int, int]) -> ModelRunnerOutput:
    sampled = []
    for row in plan.rows:
        if row.new is not None:
            known[row.serial] = len(row.new.token_ids)
        complete = row.num_tokens_after >= known[row.serial]
        known[row.serial] += complete
        sampled.append([token(row.serial, row.num_tokens_after)] if complete else [])
    return ModelRunnerOutput(step=plan.step, serials=[row.serial for row in plan.rows], sampled_token_ids=sampled)


def run(depth: int, **engine_args: Any) -> tuple[dict[str, list[int]], dict[str, str | None], Watcher]:
    """Outputs and finish reasons of a crowd, with up to `depth` steps in flight."""
    watcher = Watcher(**engine_args)
    core = core_of(header(**engine_args), watcher)
    outputs: dict[str, list[int]] = {}
    reasons: dict[str, str | None] = {}
    known: dict[int, int] = {}
    for number in range(24):
        prompt = [5 + (number * k) % 30 for k in range(3 + number % 17)]
        core.add(request(f"q{number}", prompt, number % 3, max_tokens=1 + number * 2 % 23, ignore_eos=number % 2 == 0))
    in_flight: deque[ModelRunnerOutput] = deque()
    for _ in range(3000):
        plan = core.schedule()
        if plan.rows:
            in_flight.append(answer(core, plan, known))
        if in_flight and (len(in_flight) == depth or not plan.rows):
            output = in_flight.popleft()
            for news in core.update(output.step, output).outputs:
                outputs.setdefault(news.request_id, []).extend(news.new_token_ids)
                reasons[news.request_id] = news.finish_reason
        if not core.has_unfinished_requests() and not in_flight:
            break
    assert not core.has_unfinished_requests()
    assert core.scheduler.kv_cache_manager.block_pool.num_blocks_in_use == 0
    return outputs, reasons, watcher


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("depth", [2, 3])
def test_outputs_do_not_depend_on_the_number_of_steps_in_flight(policy: str, depth: int) -> None:
    arguments = {"policy": policy, "max_num_batched_tokens": 12, "max_num_seqs": 8, "num_blocks": 20}
    plain, plain_reasons, _ = run(1, **arguments)
    ahead, ahead_reasons, watcher = run(depth, **arguments)
    assert watcher.preemptions > 0
    assert ahead == plain
    assert ahead_reasons == plain_reasons
    assert set(plain_reasons.values()) == {"stop", "length"}


def test_nothing_is_planned_behind_the_last_token() -> None:
    core = make_core()
    core.add(request("a", [10, 11], max_tokens=2))
    plans = [core.schedule() for _ in range(4)]
    assert [len(plan.rows) for plan in plans] == [1, 1, 0, 0]


def test_a_request_aborted_with_two_steps_in_flight_gets_neither_output() -> None:
    core = make_core()
    core.add(request("a", [10, 11], max_tokens=9))
    plans = [core.schedule(), core.schedule()]
    core.abort(["a"])
    for plan in plans:
        serials = [row.serial for row in plan.rows]
        output = ModelRunnerOutput(step=plan.step, serials=serials, sampled_token_ids=[[7]])
        assert core.update(plan.step, output).outputs == []
    assert core.scheduler.kv_cache_manager.block_pool.num_blocks_in_use == 0


def test_a_failed_forward_takes_down_the_steps_that_count_on_it() -> None:
    core = make_core(max_num_batched_tokens=64)
    beginning = [*range(10, 22)]
    core.add(request("a", [*beginning, 1], max_tokens=9))
    first = core.schedule()
    core.add(request("b", [*beginning, 2], max_tokens=9))  # shares the blocks that the first step should have filled
    core.add(request("c", [30, 31], max_tokens=9))
    second = core.schedule()
    assert [(row.request_id, row.num_computed_tokens) for row in second.rows] == [("a", 13), ("b", 12), ("c", 0)]

    failed = core.update(first.step, ForwardFailure(step=first.step, why="out of memory")).outputs
    assert [(news.request_id, news.finish_reason) for news in failed] == [("a", "error"), ("b", "error")]
    serials = [row.serial for row in second.rows]
    output = ModelRunnerOutput(step=second.step, serials=serials, sampled_token_ids=[[7], [7], [7]])
    (news,) = core.update(second.step, output).outputs
    assert news.request_id == "c"

    core.add(request("d", [*beginning, 3], max_tokens=1))
    row = core.schedule().rows[-1]
    assert (row.request_id, row.num_computed_tokens) == ("d", 0)
