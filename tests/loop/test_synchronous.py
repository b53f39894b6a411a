"""One step after the other, and a forward pass that fails costs the requests of its step alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.config import EngineConfig, KVCacheConfig
from engine.core.engine_core import EngineCore
from engine.core.messages import (
    EngineCoreOutput,
    EngineCoreRequest,
    GrammarBitmask,
    ModelRunnerOutput,
    SchedulerOutput,
)
from engine.errors import ForwardError
from engine.executor.uniproc import UniProcExecutor
from engine.loop.inproc_client import InprocClient
from engine.sampling_params import SamplingParams

CONFIG = EngineConfig.from_args(
    "orrery-tiny", dtype="float32", device="cpu", max_model_len=64, num_gpu_blocks_override=20, max_num_seqs=2
)


class Faulty:
    """A real executor, but for the steps that are to fail."""

    def __init__(self, executor: UniProcExecutor) -> None:
        self._executor = executor
        self.steps: list[int] = []
        self.failing: set[int] = set()

    def execute_model(self, scheduler_output: SchedulerOutput) -> None:
        self.steps.append(scheduler_output.step)
        self._executor.execute_model(scheduler_output)

    def sample_tokens(self, grammar_bitmask: GrammarBitmask | None) -> ModelRunnerOutput:
        output = self._executor.sample_tokens(grammar_bitmask)
        if output.step in self.failing:
            raise ForwardError("The forward pass failed: the planets stood still.")
        return output

    def shutdown(self) -> None:
        self._executor.shutdown()


@pytest.fixture(scope="module")
def loaded() -> Iterator[tuple[UniProcExecutor, KVCacheConfig]]:
    executor = UniProcExecutor(CONFIG)
    _, kv_cache = executor.initialize()
    yield executor, kv_cache
    executor.shutdown()


@pytest.fixture
def executor(loaded: tuple[UniProcExecutor, KVCacheConfig]) -> Faulty:
    return Faulty(loaded[0])


@pytest.fixture
def client(loaded: tuple[UniProcExecutor, KVCacheConfig], executor: Faulty) -> InprocClient:
    return InprocClient(EngineCore(CONFIG, loaded[1], 64), executor)


def add(client: InprocClient, name: str, num_tokens: int) -> int:
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, seed=0)
    return client.add_request(
        EngineCoreRequest(request_id=name, prompt_token_ids=(5, 6, 7, 300), sampling_params=params)
    )


def run(client: InprocClient) -> dict[str, list[EngineCoreOutput]]:
    news: dict[str, list[EngineCoreOutput]] = {}
    while client.has_unfinished_requests():
        for each in client.get_output().outputs:
            news.setdefault(each.request_id, []).append(each)
    return news


def test_every_step_runs_once_and_in_order(client: InprocClient, executor: Faulty) -> None:
    assert [add(client, name, 4) for name in "abc"] == [0, 1, 2]
    news = run(client)
    assert executor.steps == list(range(1, 9))
    assert [len(news[name]) for name in "abc"] == [4, 4, 4]
    assert news["c"][-1].finish_reason == "length"


def test_a_plan_without_rows_runs_no_forward_pass(client: InprocClient, executor: Faulty) -> None:
    assert client.get_output().outputs == []
    assert executor.steps == []


def test_a_failed_step_ends_its_requests_with_an_error_and_the_others_go_on(
    client: InprocClient, executor: Faulty
) -> None:
    add(client, "expected", 6)
    expected = [token for each in run(client)["expected"] for token in each.new_token_ids]
    executor.failing = {executor.steps[-1] + 3}
    for name in "abc":
        add(client, name, 6)
    news = run(client)
    for name in "ab":
        last = news[name][-1]
        assert (last.finish_reason, last.error) == ("error", "The forward pass failed: the planets stood still.")
        assert sum(len(each.new_token_ids) for each in news[name]) == 2
    assert [token for each in news["c"] for token in each.new_token_ids] == expected
    assert news["c"][-1].finish_reason == "length"
    # Every block came back.
    assert client.reset_prefix_cache()


def test_the_engine_goes_on_after_a_failure(client: InprocClient, executor: Faulty) -> None:
    executor.failing = {1}
    add(client, "a", 3)
    assert run(client)["a"][-1].finish_reason == "error"
    add(client, "a", 3)
    assert run(client)["a"][-1].finish_reason == "length"
