"""An interrupt in the middle of a step costs the requests of that step, and nothing else."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from engine import LLM, LLMEngine, SamplingParams
from engine.outputs import RequestOutput
from engine.trace.file import read_trace
from sim.invariants import check_trace
from sim.replay import replay

PROMPT = "In the morning the harbour was quiet, and the keeper of the lighthouse wound the clock in the tower."
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def make(path: Path, async_scheduling: bool) -> LLM:
    return LLM(
        model="orrery-tiny",
        dtype="float32",
        block_size=4,
        max_model_len=128,
        num_gpu_blocks_override=80,
        async_scheduling=async_scheduling,
        trace=path,
    )


def tear(llm: LLM, monkeypatch: pytest.MonkeyPatch, step: int, action: Any) -> None:
    """Let something happen within the forward pass of a step, once."""
    runner = llm.llm_engine._client._executor._worker.runner  # type: ignore[attr-defined]
    execute_model = runner.execute_model

    def torn(scheduler_output: Any) -> None:
        if scheduler_output.step == step:
            action()
        execute_model(scheduler_output)

    monkeypatch.setattr(runner, "execute_model", torn)


def interrupt() -> None:
    raise KeyboardInterrupt


def tokens(llm: LLM) -> list[int]:
    return list(llm.generate(PROMPT, GREEDY, use_tqdm=False)[0].outputs[0].token_ids)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    return tokens(make(tmp_path_factory.mktemp("whole") / "run.jsonl", False))


@pytest.mark.parametrize("step", [1, 2, 4])
def test_a_torn_step_leaves_no_trace_in_the_prefix_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[int], step: int
) -> None:
    path = tmp_path / "run.jsonl"
    llm = make(path, False)
    tear(llm, monkeypatch, step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        tokens(llm)
    assert tokens(llm) == expected
    assert tokens(llm) == expected
    llm.llm_engine.close()
    trace = read_trace(path)
    assert replay(trace).divergence is None
    assert check_trace(trace) == []


class Alarm(BaseException):
    """What a signal handler of the program may raise anywhere."""


def ring_late() -> None:
    """By then the thread that drives an asynchronous loop waits for this very step."""
    time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGALRM)


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("step", [1, 3])
def test_a_signal_handler_that_raises_does_not_shift_later_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[int], async_scheduling: bool, step: int
) -> None:
    path = tmp_path / "run.jsonl"
    llm = make(path, async_scheduling)
    tear(llm, monkeypatch, step, ring_late)

    def ring(*_: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(Alarm):
            tokens(llm)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert tokens(llm) == expected
    llm.llm_engine.close()
    assert replay(read_trace(path)).divergence is None


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_ctrl_c_within_a_step_is_held_back_and_loses_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[int], async_scheduling: bool
) -> None:
    llm = make(tmp_path / "run.jsonl", async_scheduling)
    engine: LLMEngine = llm.llm_engine
    tear(llm, monkeypatch, 3, lambda: os.kill(os.getpid(), signal.SIGINT))
    engine.add_request("a", PROMPT, GREEDY)
    last: RequestOutput | None = None
    interrupts = 0
    for _ in range(60):
        if not engine.has_unfinished_requests():
            break
        try:
            for output in engine.step():
                last = output
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts == 1
    assert last is not None and last.finished
    assert list(last.outputs[0].token_ids) == expected
