"""Prompts of embeddings give what the tokens give whose embeddings they are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import RequestError
from engine.frontend.tokenizer import Tokenizer
from engine.llm import LLM
from engine.sampling_params import BeamSearchParams, SamplingParams
from engine.trace.events import KVCached, KVLookup, RequestAdded, SchedulePreempted
from engine.trace.file import read_trace
from sim.invariants import check
from sim.replay import replay

from .conftest import ARGS, MODEL, STORY, Reference, tokens_of

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
LONG = f"{STORY}, {'the lamp turned and the boats came home ' * 5}"


@pytest.fixture(scope="module")
def embed(reference: Reference, tokenizer: Tokenizer) -> Any:
    def embed(text: str) -> Tensor:
        table: Tensor = reference.model.get_input_embeddings().weight
        return table[tokenizer.encode(text)]

    return embed


def test_embeddings_are_as_good_as_the_tokens_they_are_of(llm: LLM, embed: Any) -> None:
    expected = tokens_of(llm.generate([STORY, LONG], GREEDY))
    outputs = llm.generate([{"prompt_embeds": embed(STORY)}, {"prompt_embeds": embed(LONG)}], GREEDY)
    assert tokens_of(outputs) == expected
    assert [(output.prompt, output.prompt_token_ids) for output in outputs] == [(None, [])] * 2
    mixed = llm.generate([{"prompt_embeds": embed(STORY)}, LONG, {"prompt_embeds": embed(LONG).double()}], GREEDY)
    assert tokens_of(mixed) == [expected[0], expected[1], expected[1]]


def test_chunked_and_preempted_and_never_cached(llm: LLM, embed: Any, tmp_path: Path) -> None:
    expected = tokens_of(llm.generate(LONG, GREEDY))[0]
    trace = tmp_path / "trace.jsonl"
    args = {**ARGS, "max_num_batched_tokens": 16, "block_size": 8, "num_gpu_blocks_override": 20, "max_model_len": 128}
    other = LLM(model=MODEL, trace=trace, **args)
    with other.llm_engine:
        prompts: list[Any] = [{"prompt_embeds": embed(LONG)} for _ in range(3)]
        assert tokens_of(other.generate(prompts, GREEDY)) == [expected] * 3
    recorded = read_trace(trace)
    assert any(isinstance(event, SchedulePreempted) for event in recorded.events)
    assert not any(isinstance(event, (KVLookup, KVCached)) for event in recorded.events)
    assert all(event.has_prompt_embeds for event in recorded.events if isinstance(event, RequestAdded))
    assert replay(recorded).num_divergences == 0
    assert not check(recorded).violations


def test_penalties_look_at_the_output_alone(llm: LLM, embed: Any) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, repetition_penalty=1.5)
    (tokens,) = tokens_of(llm.generate({"prompt_embeds": embed(STORY)}, params))
    biased = SamplingParams(temperature=0.0, max_tokens=2, repetition_penalty=1.5, logit_bias={0: 100.0})
    assert tokens_of(llm.generate({"prompt_embeds": embed(STORY)}, biased))[0][0] == 0, "0 stands for no token"
    assert len(tokens) == 12


def test_what_the_caller_does_afterwards_does_not_matter(llm: LLM, embed: Any) -> None:
    embeds = embed(STORY).clone()
    expected = tokens_of(llm.generate(STORY, GREEDY))
    llm.llm_engine.add_request("r", {"prompt_embeds": embeds}, GREEDY)
    embeds.zero_()
    outputs = []
    while llm.llm_engine.has_unfinished_requests():
        outputs += llm.llm_engine.step()
    assert tokens_of(outputs[-1:]) == expected


def test_they_can_be_truncated(llm: LLM, embed: Any, tokenizer: Tokenizer) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=5, truncate_prompt_tokens=3)
    (output,) = llm.generate({"prompt_embeds": embed(STORY)}, params)
    ids = tokenizer.encode(STORY)[-3:]
    assert tokens_of([output]) == tokens_of(llm.generate({"prompt_token_ids": ids}, params))


@pytest.mark.parametrize(
    ("embeds", "says"),
    [
        ([[0.5] * 192], "prompt_embeds must be a torch tensor, got list."),
        (torch.zeros(3, 192, dtype=torch.int64), "prompt_embeds must be of a floating-point dtype, got int64."),
        (torch.zeros(3, 64), "prompt_embeds must be [tokens, 192], got [3, 64]."),
        (torch.zeros(192), "prompt_embeds must be [tokens, 192], got [192]."),
        (torch.zeros(0, 192), "The prompt is empty"),
        (torch.zeros(256, 192), "The prompt has 256 tokens, but with max_model_len=256 at most 255"),
        (torch.full((3, 192), math.nan), "prompt_embeds must be finite"),
    ],
    ids=["list", "integers", "hidden size", "one dimension", "empty", "too long", "nan"],
)
def test_what_is_no_embedding(llm: LLM, embeds: Any, says: str) -> None:
    with pytest.raises(RequestError) as refusal:
        llm.generate({"prompt_embeds": embeds}, GREEDY)
    assert str(refusal.value).startswith(says)
    assert not llm.llm_engine.has_unfinished_requests()


def test_what_embeddings_exclude(llm: LLM, embed: Any) -> None:
    with pytest.raises(RequestError, match="prompt_logprobs must be None for a prompt of embeddings"):
        llm.generate({"prompt_embeds": embed(STORY)}, SamplingParams(prompt_logprobs=1))
    with pytest.raises(RequestError, match="A prompt must be"):
        llm.generate({"prompt_embeds": embed(STORY), "cache_salt": "a"}, GREEDY)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="not of embeddings"):
        llm.beam_search({"prompt_embeds": embed(STORY)}, BeamSearchParams(beam_width=2, max_tokens=2))
