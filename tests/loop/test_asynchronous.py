"""Planning ahead changes when things happen, never what comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import LLM, SamplingParams
from engine.errors import ConfigError
from engine.trace.events import ScheduleCalled, SchedulePreempted, StepOutput
from engine.trace.file import Trace, read_trace
from sim.invariants import check_trace
from sim.replay import replay

PROMPTS = [
    "The keeper of the lighthouse",
    "A clock",
    "The keeper of the lighthouse saw",
    "In the morning the harbour was",
]


def run(path: Path, params: SamplingParams, **engine_args: Any) -> tuple[list[list[int]], Trace]:
    llm = LLM(
        model="orrery-tiny",
        dtype="float32",
        block_size=4,
        num_gpu_blocks_override=26,
        max_model_len=96,
        max_num_batched_tokens=12,
        trace=path,
        trace_level="forward",
        **engine_args,
    )
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    llm.llm_engine.close()
    return [list(output.outputs[0].token_ids) for output in outputs], read_trace(path)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True),
        SamplingParams(temperature=0.0, max_tokens=32, stop=[" sea"]),
        SamplingParams(temperature=0.9, top_p=0.95, seed=7, max_tokens=32),
    ],
    ids=["greedy", "stop string", "seeded"],
)
def test_the_same_tokens_as_one_step_after_the_other(tmp_path: Path, params: SamplingParams) -> None:
    expected, _ = run(tmp_path / "sync.jsonl", params)
    tokens, trace = run(tmp_path / "async.jsonl", params, async_scheduling=True)
    assert tokens == expected
    assert any(isinstance(event, SchedulePreempted) for event in trace.events)
    assert most_in_flight(trace) == 2
    report = replay(trace)
    assert report.divergence is None
    assert check_trace(trace) == []


def most_in_flight(trace: Trace) -> int:
    """Plans that had left while an answer was still awaited."""
    answered = {event.step for event in trace.events if isinstance(event, StepOutput)}
    in_flight = most = 0
    for event in trace.events:
        if isinstance(event, ScheduleCalled) and event.step in answered:
            in_flight += 1
        in_flight -= isinstance(event, StepOutput)
        most = max(most, in_flight)
    return most


def test_it_is_refused_with_speculation() -> None:
    with pytest.raises(ConfigError, match="async_scheduling cannot be combined with speculative_config"):
        LLM(
            model="orrery-tiny",
            async_scheduling=True,
            speculative_config={"method": "ngram", "num_speculative_tokens": 2},
        )
