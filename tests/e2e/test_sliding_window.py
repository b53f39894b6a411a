"""Models with sliding windows: the tokens are Hugging Face's, and the cache holds no more than the windows see."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers

from engine.llm import LLM
from engine.models.store import resolve_model
from engine.sampling_params import SamplingParams
from engine.trace import events as ev
from engine.trace.file import Trace, read_trace
from sim.invariants import check_trace
from sim.replay import replay
from sim.state import State
from tests.models.random_models import save_random_model

WINDOW = 12
BLOCK_SIZE = 4
NUM_OUTPUT_TOKENS = 40
NEAR_TIE = 1e-4

#: Every layer with a window; windows and full attention in turn; twice as many windows as full attention. Per model the
#: number of its KV cache groups, and of blocks in a pool so small that requests are preempted.
MODELS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "mistral": ("mistral windowed", {}, 1, 24),
    "hybrid": (
        "qwen2 windowed",
        {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2},
        2,
        72,
    ),
    "mostly windows": ("qwen2 windowed", {"num_hidden_layers": 3, "max_window_layers": 1}, 3, 84),
}


class Case(NamedTuple):
    """A model, prompts, and what Hugging Face makes of them."""

    folder: Path
    num_groups: int
    num_blocks: int
    prompts: list[list[int]]
    expected: list[list[int]]


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    variant, changes, num_groups, num_blocks = MODELS[request.param]
    folder = tmp_path_factory.mktemp("windowed")
    tiny = resolve_model("orrery-tiny")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny / name, folder)
    model = save_random_model(folder, variant, vocab_size=2048, sliding_window=WINDOW, **changes)
    model.generation_config.eos_token_id = None
    draw = torch.Generator().manual_seed(2)
    common = torch.randint(5, 2048, (52,), generator=draw).tolist()
    own = [torch.randint(5, 2048, (length,), generator=draw).tolist() for length in (5, 30, 17, 8, 60, 1)]
    prompts = [common[: 52 if number % 2 else 20] + tail for number, tail in enumerate(own)]
    return Case(folder, num_groups, num_blocks, prompts, [complete(model, prompt) for prompt in prompts])


@torch.inference_mode()
def complete(model: transformers.PreTrainedModel, prompt: list[int]) -> list[int]:
    """Greedy tokens, none of which was chosen by a hair."""
    result = model.generate(  # type: ignore[operator]
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=NUM_OUTPUT_TOKENS,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    best = torch.cat(result.logits).topk(2).values
    assert float((best[:, 0] - best[:, 1]).min()) > NEAR_TIE
    tokens: list[int] = result.sequences[0, len(prompt) :].tolist()
    return tokens


def run(case: Case, folder: Path, rounds: int, **engine_args: Any) -> tuple[list[list[list[int]]], Trace]:
    """Generate for all prompts at once, several times over; the tokens of each round, and the trace of all."""
    llm = LLM(
        model=str(case.folder),
        dtype="float32",
        device="cpu",
        block_size=BLOCK_SIZE,
        max_model_len=160,
        trace=folder / "trace.jsonl",
        **engine_args,
    )
    params = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True)
    rounds_of_tokens = [
        [
            output.outputs[0].token_ids
            for output in llm.generate([{"prompt_token_ids": p} for p in case.prompts], params, use_tqdm=False)
        ]
        for _ in range(rounds)
    ]
    llm.llm_engine.close()
    return rounds_of_tokens, read_trace(folder / "trace.jsonl")


def test_tokens_are_the_models_with_chunks_hits_and_preemption(case: Case, tmp_path: Path) -> None:
    rounds, trace = run(
        case, tmp_path, 2, num_gpu_blocks_override=case.num_blocks, max_num_batched_tokens=32, max_num_seqs=6
    )
    assert rounds == [case.expected] * 2

    assert len(trace.header.kv_cache.groups) == case.num_groups
    prefills = Counter(e.request for e in of(trace, ev.ScheduleRequest) if e.phase == "prefill")
    assert max(prefills.values()) > 1
    assert of(trace, ev.SchedulePreempted)
    assert any(e.num_hit_tokens for e in of(trace, ev.KVLookup))
    assert any(e.by_window for e in of(trace, ev.KVFreed))
    assert check_trace(trace) == []
    assert replay(trace).num_divergences == 0


def test_what_a_window_has_passed_is_revived_by_a_hit(case: Case, tmp_path: Path) -> None:
    rounds, trace = run(case, tmp_path, 2, num_gpu_blocks_override=600, async_scheduling=True)
    assert rounds == [case.expected] * 2
    assert not of(trace, ev.SchedulePreempted)
    windows = [group for group, spec in enumerate(trace.header.kv_cache.groups) if spec.sliding_window]
    passed = {block_id for e in of(trace, ev.KVFreed) if e.by_window for block_id in e.block_ids}
    shared = [e for e in of(trace, ev.KVTouched) if e.group in windows]
    revived = {b for e in shared for b, ref_count in zip(e.block_ids, e.ref_counts, strict=True) if ref_count == 1}
    assert passed & revived
    # Of what is found, a windowed group takes the blocks that the next token sees: the window is 11 tokens behind it.
    assert {sum(block_id != 0 for block_id in e.block_ids) for e in shared if len(e.block_ids) > 3} == {3}
    assert check_trace(trace) == []
    assert replay(trace).num_divergences == 0


def test_the_blocks_of_a_window_do_not_grow_with_the_request(case: Case, tmp_path: Path) -> None:
    _, trace = run(case, tmp_path, 1, num_gpu_blocks_override=600, max_num_batched_tokens=32)
    state = State.initial(trace.header)
    in_prefill, in_decode = Counter[bool](), Counter[bool]()
    for event in trace.events:
        state.apply(event)
        if isinstance(event, ev.ScheduleRequest):
            most = in_decode if event.phase == "decode" else in_prefill
            tables = state.requests[event.request].block_ids
            for spec, table in zip(trace.header.kv_cache.groups, tables, strict=True):
                windowed = spec.sliding_window is not None
                most[windowed] = max(most[windowed], sum(block_id != 0 for block_id in table))
    assert in_decode[True] == -(-WINDOW // BLOCK_SIZE) + 1
    assert in_prefill[True] <= -(-(WINDOW - 1 + 32) // BLOCK_SIZE) + 1
    if case.num_groups > 1:
        assert in_decode[False] == -(-(max(map(len, case.prompts)) + NUM_OUTPUT_TOKENS - 1) // BLOCK_SIZE)


def test_the_window_matters(case: Case) -> None:
    """Or the tests above would pass with full attention too."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(case.folder), dtype=torch.float32, sliding_window=1000
    )
    model.generation_config.eos_token_id = None
    assert complete(model, case.prompts[4]) != case.expected[4]


def of(trace: Trace, kind: type[Any]) -> list[Any]:
    return [event for event in trace.events if isinstance(event, kind)]
