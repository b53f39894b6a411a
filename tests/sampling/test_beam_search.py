"""Beam search against a search that recomputes everything at every step."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from engine.errors import RequestError
from engine.frontend.tokenizer import Tokenizer
from engine.llm import LLM
from engine.sampling_params import BeamSearchParams

from .conftest import STORY, Reference


class Beam(NamedTuple):
    tokens: list[int]
    logprob: float
    ended: bool = False

    def score(self, length_penalty: float) -> float:
        length = len(self.tokens) - self.ended
        return float(self.logprob / length**length_penalty)


def brute_force(
    reference: Reference, prompt: list[int], eos: set[int], width: int, steps: int, length_penalty: float
) -> list[Beam]:
    beams, done = [Beam(prompt, 0.0)], list[Beam]()
    for _ in range(steps):
        grown: list[Beam] = []
        for beam in beams:
            top = reference.logprobs(beam.tokens)[-1].topk(2 * width)
            for token, logprob in zip(top.indices.tolist(), top.values.tolist(), strict=True):
                ended = token in eos
                (done if ended else grown).append(Beam([*beam.tokens, token], beam.logprob + logprob, ended))
        beams = sorted(grown, key=lambda beam: beam.score(length_penalty), reverse=True)[:width]
    return sorted(done + beams, key=lambda beam: beam.score(length_penalty), reverse=True)[:width]


@pytest.mark.parametrize(("width", "length_penalty", "ignore_eos"), [(1, 1.0, True), (3, 1.0, False), (4, 2.0, True)])
def test_it_finds_what_brute_force_finds(
    llm: LLM, reference: Reference, tokenizer: Tokenizer, width: int, length_penalty: float, ignore_eos: bool
) -> None:
    params = BeamSearchParams(beam_width=width, max_tokens=6, length_penalty=length_penalty, ignore_eos=ignore_eos)
    prompts = [STORY, "What color is the sea? The sea is blue"]
    outputs = llm.beam_search(list(prompts), params)
    eos = set() if ignore_eos else {*llm.llm_engine.model.eos_token_ids}
    for prompt, output in zip(prompts, outputs, strict=True):
        expected = brute_force(reference, tokenizer.encode(prompt), eos, width, 6, length_penalty)
        assert [found.tokens for found in output.sequences] == [beam.tokens for beam in expected]
        for found, beam in zip(output.sequences, expected, strict=True):
            assert found.cum_logprob == pytest.approx(beam.logprob, abs=1e-3)
            assert found.finish_reason == ("stop" if beam.ended else "length")
            assert found.text == tokenizer.decode(beam.tokens)


def test_a_sequence_that_ends_is_put_aside(llm: LLM, tokenizer: Tokenizer) -> None:
    end = tokenizer.encode("<|im_start|>user\nWhat color is the sea?<|im_end|>\n<|im_start|>assistant\n")
    (output,) = llm.beam_search({"prompt_token_ids": end}, BeamSearchParams(beam_width=4, max_tokens=25))
    reasons = {found.finish_reason for found in output.sequences}
    assert "stop" in reasons
    for found in output.sequences:
        ended = found.tokens[-1] in llm.llm_engine.model.eos_token_ids
        assert ended == (found.finish_reason == "stop")


def test_beams_share_their_prefix(llm: LLM) -> None:
    assert llm.llm_engine.reset_prefix_cache()
    ids = list(range(100, 164))
    llm.beam_search({"prompt_token_ids": ids, "cache_salt": "beams"}, BeamSearchParams(beam_width=2, max_tokens=3))
    (salted,) = llm.generate({"prompt_token_ids": [*ids, 9], "cache_salt": "beams"})
    (plain,) = llm.generate({"prompt_token_ids": [*ids, 9]})
    assert (salted.num_cached_tokens, plain.num_cached_tokens) == (64, 0)


def test_the_search_ends_at_the_models_length(llm: LLM) -> None:
    (output,) = llm.beam_search({"prompt_token_ids": [9] * 253}, BeamSearchParams(beam_width=2, max_tokens=50))
    assert {len(found.tokens) for found in output.sequences if found.finish_reason == "length"} <= {256}


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"beam_width": 0, "max_tokens": 1}, "beam_width must be an integer >= 1"),
        ({"beam_width": 2, "max_tokens": 0}, "max_tokens must be an integer >= 1"),
        ({"beam_width": 2, "max_tokens": 1, "length_penalty": float("nan")}, "length_penalty must be in"),
        ({"beam_width": 11, "max_tokens": 1}, "beam_width must be <= 10"),
    ],
    ids=str,
)
def test_what_is_refused(llm: LLM, params: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        llm.beam_search(STORY, BeamSearchParams(**params))
