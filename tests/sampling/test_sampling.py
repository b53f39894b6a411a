"""What sampling parameters do to real requests, alone and in company."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import RequestError
from engine.frontend.tokenizer import Tokenizer
from engine.llm import LLM
from engine.outputs import RequestOutput
from engine.sampling_params import SamplingParams
from engine.trace.events import SchedulePreempted, ScheduleRequest
from engine.trace.file import read_trace
from sim.invariants import check
from sim.replay import replay

from .conftest import ARGS, MODEL, STORY, Reference, tokens_of

MOON = "The moon is the moon is the moon is the"
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
SEEDED: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_tokens": 24, "ignore_eos": True}


def greedily(reference: Reference, prompt: list[int], change: Callable[[Tensor, list[int]], None]) -> list[int]:
    """Hugging Face's logits, changed in view of the output so far, and the largest of them taken."""
    output: list[int] = []
    for _ in range(GREEDY["max_tokens"]):
        logits = reference.logits(prompt + output)[-1].clone()
        change(logits, output)
        output.append(int(logits.argmax()))
    return output


@pytest.fixture(scope="module")
def prompt(tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(STORY)


class TestPenalties:
    def test_presence_and_frequency_look_at_the_output_only(
        self, llm: LLM, reference: Reference, prompt: list[int]
    ) -> None:
        def change(logits: Tensor, output: list[int]) -> None:
            for token, count in Counter(output).items():
                logits[token] -= 0.7 + 0.4 * count

        params = SamplingParams(presence_penalty=0.7, frequency_penalty=0.4, **GREEDY)
        assert tokens_of(llm.generate(STORY, params)) == [greedily(reference, prompt, change)]

    def test_repetition_looks_at_prompt_and_output(self, llm: LLM, reference: Reference, tokenizer: Tokenizer) -> None:
        prompt = tokenizer.encode(MOON)

        def change(logits: Tensor, output: list[int]) -> None:
            seen = list({*prompt, *output})
            logits[seen] = torch.where(logits[seen] > 0, logits[seen] / 1.8, logits[seen] * 1.8)

        params = SamplingParams(repetition_penalty=1.8, **GREEDY)
        penalised = tokens_of(llm.generate(MOON, params))
        assert penalised == [greedily(reference, prompt, change)]
        assert penalised != tokens_of(llm.generate(MOON, SamplingParams(**GREEDY)))

    @pytest.mark.parametrize("order", [1, -1])
    def test_a_neighbour_without_penalty_is_not_penalised(self, llm: LLM, order: int) -> None:
        params = [SamplingParams(repetition_penalty=2.0, **GREEDY), SamplingParams(**GREEDY)]
        alone = [tokens_of(llm.generate(MOON, each))[0] for each in params]
        assert alone[0] != alone[1]
        assert tokens_of(llm.generate([MOON, MOON], params[::order])) == alone[::order]


class TestConstraints:
    def test_only_allowed_tokens_come(self, llm: LLM) -> None:
        allowed = [300, 301, 400, 1000]
        (tokens,) = tokens_of(llm.generate(STORY, SamplingParams(allowed_token_ids=allowed, **SEEDED)))
        assert set(tokens) <= set(allowed)
        assert len(set(tokens)) > 1

    def test_a_bias_can_force_or_forbid_a_token(self, llm: LLM) -> None:
        (plain,) = tokens_of(llm.generate(STORY, SamplingParams(**GREEDY)))
        (forced,) = tokens_of(llm.generate(STORY, SamplingParams(logit_bias={77: 1e9}, **GREEDY)))
        assert forced == [77] * 24
        (without,) = tokens_of(llm.generate(STORY, SamplingParams(logit_bias={plain[3]: -1e9}, **GREEDY)))
        assert plain[3] not in without
        assert without[:3] == plain[:3]

    def test_bad_words_do_not_come_with_or_without_a_space(self, llm: LLM) -> None:
        (plain,) = llm.generate(STORY, SamplingParams(**GREEDY))
        words = [word.strip(",.") for word in plain.outputs[0].text.split() if len(word) > 2][:4]
        assert len(words) == 4
        (other,) = llm.generate(STORY, SamplingParams(bad_words=words, **GREEDY))
        assert not set(words) & {word.strip(",.") for word in other.outputs[0].text.split()}

    def test_min_tokens_hides_every_end(self, llm: LLM) -> None:
        eos = llm.llm_engine.model.eos_token_ids
        bias = dict.fromkeys([*eos, 50], 100.0)
        for minimum in (0, 1, 5):
            params = SamplingParams(
                temperature=0.0, min_tokens=minimum, max_tokens=20, stop_token_ids=[50], logit_bias=bias
            )
            (completion,) = llm.generate(STORY, params)[0].outputs
            assert len(completion.token_ids) == minimum + 1, "exactly so many, and then the end"
            assert not {*eos, 50} & set(completion.token_ids[:-1])
            assert completion.token_ids[-1] in {*eos, 50}
            assert completion.finish_reason == "stop"

    def test_ends_are_hidden_for_those_who_ignore_them_too(self, llm: LLM) -> None:
        (eos, *_) = llm.llm_engine.model.eos_token_ids
        params = SamplingParams(temperature=0.0, min_tokens=3, max_tokens=6, ignore_eos=True, logit_bias={eos: 100.0})
        (tokens,) = tokens_of(llm.generate(STORY, params))
        assert eos not in tokens[:3]
        assert tokens[3:] == [eos] * 3

    def test_stop_strings_before_min_tokens_are_ignored(self, llm: LLM) -> None:
        (plain,) = llm.generate(STORY, SamplingParams(**GREEDY))
        stop = "a"
        positions = [n for n, char in enumerate(plain.outputs[0].text) if char == stop]
        params = SamplingParams(min_tokens=12, stop=stop, **GREEDY)
        (completion,) = llm.generate(STORY, params)[0].outputs
        assert len(completion.token_ids) > 12
        assert len(completion.text) > positions[0]
        assert (completion.finish_reason, completion.stop_reason) == ("stop", "a")

    def test_a_stop_token_ends_the_text_before_it(self, llm: LLM, tokenizer: Tokenizer) -> None:
        (plain,) = llm.generate(STORY, SamplingParams(**GREEDY))
        tokens = plain.outputs[0].token_ids
        stop = tokens[6]
        text = plain.outputs[0].text
        place = tokens.index(stop)
        before, behind = (tokenizer.decode([*plain.prompt_token_ids, *tokens[:end]]) for end in (place, place + 1))
        for include, whole in ((False, before), (True, behind)):
            params = SamplingParams(
                temperature=0.0, max_tokens=24, stop_token_ids=[stop], include_stop_str_in_output=include
            )
            (completion,) = llm.generate(STORY, params)[0].outputs
            assert STORY + completion.text == whole
            assert text.startswith(completion.text)
            assert completion.token_ids[-1] == completion.stop_reason == stop


class HideLast:
    """A custom processor: hides the token put out last, for requests that ask for it."""

    def validate_params(self, sampling_params: SamplingParams) -> None:
        if not isinstance((sampling_params.extra_args or {}).get("hide_last", False), bool):
            raise RequestError("hide_last must be True or False.")

    def new_req_logits_processor(
        self, sampling_params: SamplingParams
    ) -> Callable[[list[int], list[int], Tensor], Tensor] | None:
        return self._hide if (sampling_params.extra_args or {}).get("hide_last") else None

    @staticmethod
    def _hide(prompt: list[int], output: list[int], logits: Tensor) -> Tensor:
        hidden = logits.clone()
        if output:
            hidden[output[-1]] = -math.inf
        return hidden


def test_custom_processors(llm: LLM) -> None:
    with_custom = LLM(model=MODEL, logits_processors=[HideLast()], **ARGS)
    with with_custom.llm_engine:
        params = {"logit_bias": {77: 100.0, 78: 90.0}, **GREEDY}
        asked = SamplingParams(extra_args={"hide_last": True}, **params)
        both = with_custom.generate([STORY, STORY], [asked, SamplingParams(**params)])
        assert tokens_of(both) == [[77, 78] * 12, [77] * 24]
        with pytest.raises(RequestError, match="hide_last must be True or False"):
            with_custom.generate(STORY, SamplingParams(extra_args={"hide_last": "yes"}))


MANY = [
    SamplingParams(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2, logprobs=2, **GREEDY),
    SamplingParams(min_p=0.02, top_k=40, logprobs=0, **SEEDED),
    SamplingParams(min_tokens=20, prompt_logprobs=3, **{**GREEDY, "ignore_eos": False}),
    SamplingParams(bad_words=["the", "lived"], logit_bias={300: 2.0}, prompt_logprobs=0, logprobs=5, **SEEDED),
    SamplingParams(n=3, **SEEDED),
    SamplingParams(allowed_token_ids=list(range(200, 700)), **SEEDED),
]
LONG = [f"{STORY}, number {number}, {'there was a town by the sea and ' * 6}" for number in range(len(MANY))]


def rounded(outputs: list[RequestOutput]) -> list[Any]:
    """Everything that a user gets, log probabilities to four digits."""

    def places(logprobs: Any) -> Any:
        return logprobs and [
            place and {token: (round(entry.logprob, 3), entry.rank) for token, entry in place.items()}
            for place in logprobs
        ]

    return [
        (places(output.prompt_logprobs), [(c.token_ids, c.text, places(c.logprobs)) for c in output.outputs])
        for output in outputs
    ]


@pytest.mark.parametrize(
    "args",
    [
        {"num_gpu_blocks_override": 21, "max_model_len": 160, "block_size": 8},
        {"max_num_batched_tokens": 24, "long_prefill_token_threshold": 7},
        {"max_num_seqs": 2},
        {"async_scheduling": True, "num_gpu_blocks_override": 45, "block_size": 8, "max_num_batched_tokens": 64},
    ],
    ids=["preempted", "chunked", "two at a time", "asynchronous, preempted"],
)
def test_how_a_request_is_run_changes_nothing(llm: LLM, args: dict[str, Any], tmp_path: Path) -> None:
    expected = rounded(llm.generate(LONG, MANY))
    trace = tmp_path / "trace.jsonl"
    other = LLM(model=MODEL, trace=trace, trace_level="control", **{**ARGS, "max_model_len": 160, **args})
    with other.llm_engine:
        assert rounded(other.generate(LONG, MANY)) == expected
    recorded = read_trace(trace)
    assert replay(recorded).num_divergences == 0
    assert not check(recorded).violations
    events = recorded.events
    if "num_gpu_blocks_override" in args:
        assert any(isinstance(event, SchedulePreempted) for event in events)
    if "long_prefill_token_threshold" in args:
        assert any(isinstance(event, ScheduleRequest) and event.truncated_by is not None for event in events)


def test_a_seeded_request_never_depends_on_its_neighbours(llm: LLM) -> None:
    seeded = SamplingParams(**SEEDED)
    alone = tokens_of(llm.generate(STORY, seeded))[0]
    unseeded = SamplingParams(temperature=1.0, max_tokens=24, presence_penalty=1.0)
    for _ in range(5):
        assert tokens_of(llm.generate(["The moon", STORY], [unseeded, seeded]))[1] == alone


@pytest.mark.parametrize(
    "extreme",
    [
        {"temperature": 1e30},
        {"temperature": 1.1e-5},
        {"temperature": 5e-324},
        {"repetition_penalty": 1e5},
        {"repetition_penalty": 1e-5},
        {"presence_penalty": -2.0, "frequency_penalty": -2.0, "logit_bias": dict.fromkeys(range(2048), -math.inf)},
        {"top_k": 2**62, "top_p": 5e-324, "min_p": 1.0},
        {"allowed_token_ids": [300, 301], "bad_words": ["lighthouse"], "logit_bias": {300: -1e9, 301: -1e9}},
    ],
    ids=str,
)
def test_extremes_are_survived(llm: LLM, extreme: dict[str, Any]) -> None:
    params = {"max_tokens": 6, "ignore_eos": True, "top_p": 0.9, "min_p": 0.01, "top_k": 50, **extreme}
    before = tokens_of(llm.generate(STORY, SamplingParams(**GREEDY)))
    several = [SamplingParams(**params), SamplingParams(**{**params, "temperature": 0.0}), SamplingParams(**GREEDY)]
    outputs = llm.generate([STORY] * 3, several)
    assert [len(tokens) for tokens in tokens_of(outputs)] == [6, 6, 24]
    assert tokens_of(outputs)[2:] == before
    if "allowed_token_ids" in extreme:
        assert {*tokens_of(outputs)[0], *tokens_of(outputs)[1]} <= {300, 301}


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", None, True])
def test_a_penalty_that_is_no_number(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=rf"^{name} must be .*, got .*\.$"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"n": 0}, "n must be an integer in [1, 16384], got 0."),
        ({"n": 16385}, "n must be an integer in [1, 16384], got 16385."),
        ({"n": 2, "temperature": 0.0}, "n must be 1 when the temperature is 0"),
        ({"presence_penalty": 2.1}, "presence_penalty must be in [-2, 2], got 2.1."),
        ({"frequency_penalty": -3}, "frequency_penalty must be in [-2, 2], got -3."),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be in [1e-05, 100000], got 0.0."),
        ({"repetition_penalty": -1.0}, "repetition_penalty must be in [1e-05, 100000], got -1.0."),
        ({"logprobs": -2}, "logprobs must be an integer >= 0, or -1 for the whole vocabulary, got -2."),
        ({"logprobs": 1.5}, "logprobs must be an integer"),
        ({"prompt_logprobs": False}, "prompt_logprobs must be an integer"),
        ({"bad_words": [""]}, "bad_words must hold non-empty strings"),
        ({"bad_words": [3]}, "bad_words must hold non-empty strings"),
        ({"bad_words": 3}, "bad_words must hold strings"),
        ({"logit_bias": [1, 2]}, "logit_bias must map token ids to numbers"),
        ({"logit_bias": {-1: 2.0}}, "logit_bias must map token ids >= 0 to numbers"),
        ({"logit_bias": {"5": 2.0}}, "logit_bias must map token ids >= 0 to numbers"),
        ({"logit_bias": {5: math.nan}}, "logit_bias[5] must be a number, got nan."),
        ({"allowed_token_ids": []}, "allowed_token_ids must hold at least one token id"),
        ({"allowed_token_ids": [-3]}, "allowed_token_ids must hold integers >= 0"),
        ({"stop": "x", "detokenize": False}, "stop must be empty when detokenize is False"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens must be an integer -1"),
        ({"output_kind": 1}, "output_kind must be a RequestOutputKind"),
        ({"extra_args": [1]}, "extra_args must be a dict"),
    ],
    ids=str,
)
def test_parameters_out_of_their_range(params: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError) as refusal:
        SamplingParams(**params)
    assert str(refusal.value).startswith(says)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"stop_token_ids": [2048]}, "stop_token_ids: token id 2048 is out of the vocabulary"),
        ({"logit_bias": {5000: 1.0}}, "logit_bias: token id 5000 is out of the vocabulary"),
        ({"allowed_token_ids": [5, 2048]}, "allowed_token_ids: token id 2048 is out of the vocabulary"),
        ({"logprobs": 21}, "logprobs must be <= max_logprobs, which is 20 in this engine, got 21."),
        ({"logprobs": -1}, "logprobs must be <= max_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs must be <= max_logprobs"),
        ({"allowed_token_ids": [2, 9], "stop_token_ids": [9], "min_tokens": 1}, "allowed_token_ids must hold more"),
        ({"bad_words": [" "]}, "bad_words must hold words that have tokens"),
        ({"truncate_prompt_tokens": 256}, "truncate_prompt_tokens must be <= 255"),
    ],
    ids=str,
)
def test_parameters_that_the_model_makes_wrong(llm: LLM, params: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError) as refusal:
        llm.generate([STORY, STORY], [SamplingParams(), SamplingParams(**params)])
    assert str(refusal.value).startswith(says)
    assert not llm.llm_engine.has_unfinished_requests()


def test_unknown_parameters_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=3)  # type: ignore[call-arg]


def test_a_bias_is_cut_and_equal_values_are_taken_once() -> None:
    params = SamplingParams(logit_bias={1: 500, 2: -math.inf, 3: 0.5}, stop_token_ids=[5, 5], bad_words=["a", "a"])
    assert params.logit_bias == {1: 100.0, 2: -100.0, 3: 0.5}
    assert (params.stop_token_ids, params.bad_words) == ((5,), ("a",))
    assert SamplingParams(logprobs=True).logprobs == 1


def test_a_long_prompt_may_be_truncated_from_the_left(llm: LLM) -> None:
    ids = list(range(100, 400))
    for kept, expected in ((5, ids[-5:]), (255, ids[-255:]), (-1, ids[-255:])):
        params = SamplingParams(temperature=0.0, max_tokens=1, truncate_prompt_tokens=kept)
        (output,) = llm.generate({"prompt_token_ids": ids}, params)
        assert output.prompt_token_ids == expected


def test_text_is_made_only_where_it_is_wanted(llm: LLM) -> None:
    (plain,) = llm.generate(STORY, SamplingParams(**GREEDY))
    (silent,) = llm.generate(STORY, SamplingParams(detokenize=False, logprobs=1, **GREEDY))
    assert silent.outputs[0].text == ""
    assert silent.outputs[0].token_ids == plain.outputs[0].token_ids
    assert silent.outputs[0].logprobs is not None
    assert {entry.decoded_token for place in silent.outputs[0].logprobs for entry in place.values()} == {None}
