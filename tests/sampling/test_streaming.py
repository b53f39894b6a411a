"""Deltas: only what is new, adding up to the whole, with no beginning of a stop string ever shown."""

from __future__ import annotations

from typing import Any

import pytest

from engine.frontend.tokenizer import Tokenizer
from engine.llm import LLM
from engine.outputs import CompletionOutput, RequestOutput
from engine.sampling_params import RequestOutputKind, SamplingParams

from .conftest import STORY, run

GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}


def stream(llm: LLM, prompt: Any, **params: Any) -> list[RequestOutput]:
    engine = llm.llm_engine
    engine.add_request("stream", prompt, SamplingParams(output_kind=RequestOutputKind.DELTA, **params))
    return run(engine)


def deltas(outputs: list[RequestOutput]) -> list[CompletionOutput]:
    return [completion for output in outputs for completion in output.outputs]


def test_deltas_add_up_to_the_whole(llm: LLM) -> None:
    (whole,) = llm.generate(STORY, SamplingParams(logprobs=1, prompt_logprobs=0, **GREEDY))
    outputs = stream(llm, STORY, logprobs=1, prompt_logprobs=0, **GREEDY)
    parts = deltas(outputs)
    assert len(parts) == 24
    assert "".join(part.text for part in parts) == whole.outputs[0].text
    assert [part.token_ids for part in parts] == [[token] for token in whole.outputs[0].token_ids]
    assert [place for part in parts for place in part.logprobs or []] == whole.outputs[0].logprobs
    assert parts[-1].cumulative_logprob == pytest.approx(whole.outputs[0].cumulative_logprob)
    assert [part.finish_reason for part in parts] == [None] * 23 + ["length"]
    assert [output.prompt_logprobs for output in outputs] == [whole.prompt_logprobs] + [None] * 23


@pytest.mark.parametrize("include", [False, True])
def test_no_beginning_of_a_stop_string_is_shown(llm: LLM, include: bool) -> None:
    (whole,) = llm.generate(STORY, SamplingParams(**GREEDY))
    text = whole.outputs[0].text
    for start, length in ((5, 2), (9, 7), (12, 11), (20, 1)):
        stop = text[start : start + length]
        parts = deltas(stream(llm, STORY, stop=stop, include_stop_str_in_output=include, **GREEDY))
        shown = ""
        for part in parts:
            shown += part.text
            assert text.startswith(shown)
        end = text.index(stop)
        assert shown == text[: end + length if include else end]
        assert (parts[-1].finish_reason, parts[-1].stop_reason) == ("stop", stop)
        # What was shown before the end could not have been taken back.
        before = "".join(part.text for part in parts[:-1])
        assert len(before) <= end
    assert not llm.llm_engine.has_unfinished_requests()


def test_a_prompt_that_ends_inside_a_character(llm: LLM, tokenizer: Tokenizer) -> None:
    first, second, third = (
        next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == bytes([byte]))
        for byte in "你".encode()
    )
    letter = next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == b"a")
    prompt = {"prompt_token_ids": [*tokenizer.encode("The"), first, second]}
    # The output begins with the character's last byte: the character is its text, and nothing is shown twice.
    parts = deltas(stream(llm, prompt, temperature=0.0, max_tokens=1, allowed_token_ids=[third]))
    assert [part.text for part in parts] == ["你"]
    # It begins with something else: then what the prompt left open is not the output's.
    parts = deltas(stream(llm, prompt, temperature=0.0, max_tokens=3, allowed_token_ids=[letter]))
    assert "".join(part.text for part in parts) == "aaa"
    # A character that is never completed becomes a replacement, at the end only.
    parts = deltas(stream(llm, "The", temperature=0.0, max_tokens=2, allowed_token_ids=[first, second], seed=1))
    assert parts[0].text == ""
    assert parts[-1].text.endswith("\ufffd")
    assert "".join(part.text for part in parts) == "".join(part.text for part in parts[-1:])


def test_who_looks_at_the_end_alone_gets_one_output(llm: LLM) -> None:
    llm.llm_engine.add_request("once", STORY, SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, **GREEDY))
    (output,) = run(llm.llm_engine)
    assert output.finished
    assert output.outputs == llm.generate(STORY, SamplingParams(**GREEDY))[0].outputs
