"""Log probabilities are Hugging Face's log softmax of the raw logits, however the request is run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from engine.llm import LLM
from engine.logprobs import TokenLogprobs
from engine.outputs import RequestOutput
from engine.sampling_params import SamplingParams
from engine.trace.events import KVLookup, ScheduleRequest, StepOutput, TokenPieces
from engine.trace.file import read_trace

from .conftest import ARGS, MODEL, STORY, Reference, tokens_of

PARAMS: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 12, "ignore_eos": True}
LONG = [f"{STORY}, {'the lamp turned and the boats came home ' * 4}in winter {number}" for number in range(3)]


def check_place(place: TokenLogprobs, token: int, expected: Tensor, num_top: int) -> None:
    """One place of a text against the log softmax of the logits there."""
    first, *_ = place
    assert first == token
    ranks = [entry.rank for entry in place.values()]
    assert place[token].rank == int((expected > expected[token]).sum()) + 1
    assert len(place) == num_top + (place[token].rank > num_top)
    assert sorted(ranks)[:num_top] == list(range(1, num_top + 1))
    for token_id, entry in place.items():
        assert entry.logprob == pytest.approx(float(expected[token_id]), abs=1e-4)


def check(output: RequestOutput, reference: Reference, num_top: int | None, num_prompt_top: int | None) -> None:
    """All of a request's log probabilities."""
    (completion,) = output.outputs
    ids = output.prompt_token_ids + completion.token_ids
    expected = reference.logprobs(ids)
    num_prompt = len(output.prompt_token_ids)
    if num_prompt_top is None:
        assert output.prompt_logprobs is None
    else:
        assert output.prompt_logprobs is not None
        first, *places = output.prompt_logprobs
        assert first is None
        assert len(places) == num_prompt - 1
        for index, place in enumerate(places):
            assert place is not None
            check_place(place, ids[index + 1], expected[index], num_prompt_top)
    if num_top is None:
        assert (completion.logprobs, completion.cumulative_logprob) == (None, None)
    else:
        assert completion.logprobs is not None
        assert len(completion.logprobs) == len(completion.token_ids)
        for index, place in enumerate(completion.logprobs):
            check_place(place, ids[num_prompt + index], expected[num_prompt + index - 1], num_top)
        total = sum(place[ids[num_prompt + index]].logprob for index, place in enumerate(completion.logprobs))
        assert completion.cumulative_logprob == pytest.approx(total)


@pytest.mark.parametrize(("num_top", "num_prompt_top"), [(0, None), (3, 2), (20, 20), (None, 0)])
def test_they_are_those_of_the_model(
    llm: LLM, reference: Reference, num_top: int | None, num_prompt_top: int | None
) -> None:
    params = SamplingParams(logprobs=num_top, prompt_logprobs=num_prompt_top, **PARAMS)
    for output in llm.generate([STORY, "The moon"], params):
        check(output, reference, num_top, num_prompt_top)


def test_penalties_temperature_and_the_like_do_not_enter(llm: LLM, reference: Reference) -> None:
    params = SamplingParams(
        **{**PARAMS, "temperature": 1.8}, logprobs=4, top_k=9, repetition_penalty=1.5, logit_bias={300: 5.0}
    )
    (output,) = llm.generate(STORY, params)
    check(output, reference, 4, None)


def test_their_values_do_not_depend_on_their_number(llm: LLM) -> None:
    counts = (0, 1, 5, 20)
    outputs = llm.generate([STORY] * 4, [SamplingParams(logprobs=k, prompt_logprobs=k, **PARAMS) for k in counts])
    assert len({tuple(tokens) for tokens in tokens_of(outputs)}) == 1
    most = outputs[-1].outputs[0].logprobs
    assert most is not None
    for count, output in zip(counts, outputs, strict=True):
        logprobs = output.outputs[0].logprobs
        assert logprobs is not None
        for place, all_of_it, token in zip(logprobs, most, output.outputs[0].token_ids, strict=True):
            assert token in place
            assert len(place) in (count, count + 1)
            assert {token_id: all_of_it[token_id] for token_id in place} == place


def test_chunks_and_prefix_hits_and_preemptions_change_nothing(reference: Reference, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    args = {**ARGS, "max_num_batched_tokens": 16, "block_size": 8, "num_gpu_blocks_override": 40, "max_model_len": 128}
    llm = LLM(model=MODEL, trace=trace, **args)
    with llm.llm_engine:
        llm.generate(LONG, SamplingParams(max_tokens=1))
        params = [
            SamplingParams(logprobs=2, prompt_logprobs=2, **PARAMS),
            SamplingParams(logprobs=2, **PARAMS),
            SamplingParams(prompt_logprobs=1, **PARAMS),
        ]
        outputs = llm.generate(LONG, params)
    check(outputs[0], reference, 2, 2)
    check(outputs[1], reference, 2, None)
    check(outputs[2], reference, None, 1)
    # Who asks for the prompt's computes all of it.
    assert [output.num_cached_tokens > 0 for output in outputs] == [False, True, False]
    events = read_trace(trace).events
    assert not any(isinstance(event, KVLookup) and event.request in (3, 5) for event in events)
    chunks = [event for event in events if isinstance(event, ScheduleRequest) and event.request == 3]
    assert sum(event.phase == "prefill" for event in chunks) > 1


def test_the_first_prompt_token_alone(llm: LLM) -> None:
    (output,) = llm.generate({"prompt_token_ids": [1]}, SamplingParams(prompt_logprobs=3, **PARAMS))
    assert output.prompt_logprobs == [None]


def test_all_of_the_vocabulary(reference: Reference) -> None:
    llm = LLM(model=MODEL, max_logprobs=-1, **ARGS)
    with llm.llm_engine:
        params = SamplingParams(logprobs=-1, prompt_logprobs=-1, **{**PARAMS, "max_tokens": 2})
        (output,) = llm.generate("The moon", params)
        vocab_size = llm.llm_engine.model.vocab_size
    check(output, reference, vocab_size, vocab_size)
    (place, _) = output.outputs[0].logprobs or []
    assert math.fsum(math.exp(entry.logprob) for entry in place.values()) == pytest.approx(1.0, abs=1e-4)


def test_tokens_are_spelled(llm: LLM) -> None:
    (output,) = llm.generate(STORY, SamplingParams(logprobs=0, **PARAMS))
    (completion,) = output.outputs
    spelled = [next(iter(place.values())).decoded_token for place in completion.logprobs or []]
    assert "".join(filter(None, spelled)) == completion.text


def test_the_trace_holds_those_that_were_asked_for(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    llm = LLM(model=MODEL, trace=trace, trace_level="control", **ARGS)
    with llm.llm_engine:
        llm.generate(STORY, SamplingParams(**PARAMS))
        outputs = llm.generate([STORY, "Hello"], [SamplingParams(logprobs=1, **PARAMS), SamplingParams(**PARAMS)])
    events = read_trace(trace).events
    steps = [event for event in events if isinstance(event, StepOutput)]
    assert all(event.logprobs is None for event in steps if event.requests == [0])
    told = [event.logprobs[event.requests.index(1)] for event in steps if 1 in event.requests and event.logprobs]
    assert [places[0].token_ids[0] for places in told] == outputs[0].outputs[0].token_ids
    spelled = {token for event in events if isinstance(event, TokenPieces) for token in event.token_ids}
    assert {token for places in told for token in places[0].token_ids} <= spelled
    assert all(
        event.logprobs[event.requests.index(2)] == [] for event in steps if 2 in event.requests and event.logprobs
    )


@pytest.mark.real_model
def test_they_are_those_of_the_real_model(smollm2_path: Path) -> None:
    llm = LLM(model=str(smollm2_path), **{**ARGS, "max_num_batched_tokens": 16})
    with llm.llm_engine:
        params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=2, prompt_logprobs=2)
        (output,) = llm.generate("An orrery is a clockwork model of the solar system that", params)
    check(output, Reference(smollm2_path), 2, 2)
