"""On the CPU kernels a request gets the same numbers, bit for bit, in whatever company and pieces it is computed.

Not just the same tokens: the log probabilities are compared as floats, without tolerance.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.llm import LLM
from engine.sampling_params import SamplingParams
from engine.trace.events import KVLookup, SchedulePreempted, ScheduleRequest, StepScheduled
from engine.trace.file import read_trace
from kernels.cpu import library

PROMPTS = [
    "Once upon a time there was a clockmaker who built a small model of the planets, and every evening he",
    "The cat sat on the mat. " * 12,
    "Red",
    "One day a girl found a key in the garden. She did not know which door it would open, so she",
]
PARAMS = SamplingParams(temperature=0.8, seed=7, max_tokens=24, ignore_eos=True, logprobs=3)

#: Per prompt and output token: the log probabilities by token id, of that token and of the likeliest.
Numbers = list[list[dict[int, float]]]


@pytest.fixture(autouse=True)
def compiled() -> None:
    why = library.why_unavailable()
    if why is not None:
        pytest.skip(why)


def numbers(llm: LLM, prompts: list[str]) -> Numbers:
    outputs = llm.generate(prompts, PARAMS, use_tqdm=False)
    return [
        [{token: each.logprob for token, each in of_token.items()} for of_token in output.outputs[0].logprobs or []]
        for output in outputs
    ]


def run(trace: Path, *rounds: list[str], **engine_args: Any) -> list[Numbers]:
    """Each round's numbers from one engine, which records at `trace`."""
    llm = LLM(model="orrery-tiny", device="cpu", max_model_len=256, trace=trace, **engine_args)
    found = [numbers(llm, prompts) for prompts in rounds]
    llm.llm_engine.close()
    return found


@pytest.fixture(scope="module", params=["float32", "bfloat16", "int4"])
def weights(request: pytest.FixtureRequest) -> dict[str, str]:
    if request.param == "int4":
        return {"dtype": "float32", "quantization": "int4"}
    return {"dtype": request.param}


@pytest.fixture(scope="module")
def alone(weights: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    """Each prompt by itself, in one piece, decoded step by step."""
    trace = tmp_path_factory.mktemp("alone") / "trace.jsonl"
    rounds = run(trace, *([prompt] for prompt in PROMPTS), enable_prefix_caching=False, **weights)
    assert {len(step.requests) for step in read_trace(trace).events if isinstance(step, StepScheduled)} == {1}
    return [numbers for (numbers,) in rounds]


def test_in_a_batch(weights: dict[str, str], alone: Numbers, tmp_path: Path) -> None:
    (together,) = run(tmp_path / "trace.jsonl", PROMPTS, **weights)
    assert together == alone
    events = read_trace(tmp_path / "trace.jsonl").events
    assert max(len(step.requests) for step in events if isinstance(step, StepScheduled)) == len(PROMPTS)


def test_in_chunks(weights: dict[str, str], alone: Numbers, tmp_path: Path) -> None:
    (chunked,) = run(tmp_path / "trace.jsonl", PROMPTS, max_num_batched_tokens=13, max_num_seqs=4, **weights)
    assert chunked == alone
    rows = [row for row in read_trace(tmp_path / "trace.jsonl").events if isinstance(row, ScheduleRequest)]
    assert sum(row.phase == "prefill" for row in rows) > 2 * len(PROMPTS)


def test_preempted(weights: dict[str, str], alone: Numbers, tmp_path: Path) -> None:
    (crowded,) = run(tmp_path / "trace.jsonl", PROMPTS, num_gpu_blocks_override=17, block_size=16, **weights)
    assert crowded == alone
    assert any(isinstance(event, SchedulePreempted) for event in read_trace(tmp_path / "trace.jsonl").events)


def test_over_cached_prefixes_and_in_another_order(weights: dict[str, str], alone: Numbers, tmp_path: Path) -> None:
    first, again = run(tmp_path / "trace.jsonl", PROMPTS, PROMPTS[::-1], **weights)
    assert first == alone
    assert again == alone[::-1]
    lookups = [event for event in read_trace(tmp_path / "trace.jsonl").events if isinstance(event, KVLookup)]
    assert sum(lookup.num_hit_tokens for lookup in lookups) > 0
