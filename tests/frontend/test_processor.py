"""A prompt becomes a request, or is refused in one sentence before the core hears of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.config import ModelFacts
from engine.errors import RequestError
from engine.frontend.processor import Processor, draw_seed
from engine.frontend.tokenizer import Tokenizer
from engine.sampling_params import SamplingParams
from tests.model_facts import model_facts

MAX_MODEL_LEN = 32


@pytest.fixture(scope="module")
def facts(tokenizer: Tokenizer) -> ModelFacts:
    return model_facts(vocab_size=tokenizer.vocab_size + 2, max_model_len=MAX_MODEL_LEN, eos_token_ids=(2, 3))


@pytest.fixture(scope="module")
def processor(tokenizer: Tokenizer, facts: ModelFacts) -> Processor:
    return Processor(tokenizer, facts, seed=0)


def process(processor: Processor, prompt: Any, params: Any = None, **other: Any) -> Any:
    return processor.process("id", prompt, params or SamplingParams(), **({"arrival": 0} | other))


def test_text_is_tokenised_and_kept(processor: Processor, tokenizer: Tokenizer) -> None:
    for prompt in ("the fox", {"prompt": "the fox"}):
        text, request = process(processor, prompt, priority=3)
        assert text == "the fox"
        assert request.prompt_token_ids == tuple(tokenizer.encode("the fox"))
        assert (request.request_id, request.priority, request.eos_token_ids) == ("id", 3, (2, 3))


@pytest.mark.parametrize("ids", [[5, 6, 7], (5, 6, 7), np.array([5, 6, 7])])
def test_token_ids_are_taken_as_they_are(processor: Processor, ids: Any) -> None:
    text, request = process(processor, {"prompt_token_ids": ids, "cache_salt": "mine"})
    assert (text, request.prompt_token_ids, request.cache_salt) == (None, (5, 6, 7), "mine")
    assert all(type(token_id) is int for token_id in request.prompt_token_ids)


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("", "The prompt is empty"),
        ({"prompt": ""}, "The prompt is empty"),
        ({"prompt_token_ids": []}, "The prompt is empty"),
        ({"prompt_token_ids": [5] * 32}, "has 32 tokens, but with max_model_len=32 at most 31"),
        ("the fox " * 40, "with max_model_len=32 at most 31"),
        ({"prompt_token_ids": [5, 100_000]}, "Token id 100000 is out of the vocabulary: ids are 0 to"),
        ({"prompt_token_ids": [-1]}, "Token id -1 is out of the vocabulary"),
        ({"prompt_token_ids": [1.0]}, "must hold integers only"),
        ({"prompt_token_ids": [True]}, "must hold integers only"),
        ({"prompt_token_ids": ["5"]}, "must hold integers only"),
        ({"prompt_token_ids": "567"}, "must be a list of integers"),
        ({"prompt_token_ids": 5}, "must be a list of integers"),
        ({"prompt_token_ids": None}, "must be a list of integers"),
        ({"prompt": 5}, "must be a string"),
        ({"prompt": 5, "prompt_token_ids": [5]}, "must be a string"),
        ({"prompt": "a", "prompt_embeds": [5]}, "A prompt must be"),
        ({"text": "a"}, "A prompt must be"),
        ({}, "A prompt must be"),
        ([5, 6], "A prompt must be"),
        (None, "A prompt must be"),
        (b"the", "A prompt must be"),
        ({"prompt": "a", "cache_salt": 7}, "cache_salt must be"),
        ({"prompt": "a", "cache_salt": ""}, "cache_salt must be"),
        ("a\ud800", "surrogate"),
    ],
)
def test_a_bad_prompt_is_refused_in_one_sentence(processor: Processor, prompt: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says) as refusal:
        process(processor, prompt)
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).endswith(".")


def test_other_arguments_are_checked_too(processor: Processor) -> None:
    with pytest.raises(RequestError, match="sampling_params must be SamplingParams, got dict"):
        process(processor, "a", {"temperature": 0})
    with pytest.raises(RequestError, match="priority must be an integer"):
        process(processor, "a", priority="high")
    for request_id in ("", 5, None):
        with pytest.raises(RequestError, match="request id must be"):
            processor.process(request_id, "a", SamplingParams(), arrival=0)  # type: ignore[arg-type]


def test_the_longest_prompt_leaves_room_for_one_token(processor: Processor) -> None:
    _, request = process(processor, {"prompt_token_ids": [5] * 31}, SamplingParams(max_tokens=None))
    assert request.sampling_params.max_tokens == 1


def test_an_id_that_only_the_model_knows_is_accepted(processor: Processor, tokenizer: Tokenizer) -> None:
    process(processor, {"prompt_token_ids": [tokenizer.vocab_size + 1]})


def test_without_max_tokens_a_request_may_fill_the_model(processor: Processor) -> None:
    prompt = {"prompt_token_ids": [5] * 10}
    assert process(processor, prompt, SamplingParams(max_tokens=None))[1].sampling_params.max_tokens == 22
    assert process(processor, prompt, SamplingParams(max_tokens=7))[1].sampling_params.max_tokens == 7
    endless = SamplingParams(max_tokens=None, min_tokens=50)
    assert process(processor, prompt, endless)[1].sampling_params.min_tokens == 50


def test_a_seed_is_drawn_for_a_request_without_one(tokenizer: Tokenizer, facts: ModelFacts) -> None:
    def seeds(engine_seed: int) -> list[int]:
        processor = Processor(tokenizer, facts, engine_seed)
        return [process(processor, "a", arrival=n)[1].sampling_params.seed for n in range(100)]

    assert seeds(0) == seeds(0) == [draw_seed(0, n) for n in range(100)]
    assert len({*seeds(0), *seeds(1)}) == 200
    assert all(0 <= seed < 2**64 for seed in seeds(-1))


def test_a_given_seed_stays(processor: Processor) -> None:
    assert process(processor, "a", SamplingParams(seed=0), arrival=9)[1].sampling_params.seed == 0
