"""Whatever a user gets wrong is answered in one clear sentence, and the engine stays usable."""

from __future__ import annotations

import enum
import json
import math
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError, ModelError, OrreryError, RequestError, TraceError
from engine.llm import LLM
from engine.sample.logits_processors import RequestLogitsProcessor
from engine.sampling_params import BeamSearchParams, SamplingParams
from engine.trace.file import read_trace
from sim.invariants import check_trace
from sim.replay import replay

MODEL = "orrery-tiny"
ARGS: dict[str, Any] = {"dtype": "float32", "device": "cpu", "num_gpu_blocks_override": 20, "max_model_len": 128}
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    llm = LLM(model=MODEL, **ARGS)
    yield llm
    llm.llm_engine.close()


@pytest.fixture
def unharmed(llm: LLM) -> Iterator[LLM]:
    """The engine, which must give the same tokens after the test as before, with nothing left in it."""
    (before,) = llm.generate("Once upon a time", GREEDY)
    yield llm
    assert not llm.llm_engine.has_unfinished_requests()
    assert llm.llm_engine.reset_prefix_cache(), "every block has come back"
    (after,) = llm.generate("Once upon a time", GREEDY)
    assert after.outputs == before.outputs


def sentence(error: type[OrreryError], bad: Callable[[], object]) -> str:
    """What the user is told: one line, one sentence."""
    with pytest.raises(error) as refusal:
        bad()
    text = str(refusal.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))
    return text


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("", "The prompt is empty"),
        ({"prompt_token_ids": []}, "The prompt is empty"),
        ({"prompt_token_ids": [9] * 128}, "128 tokens, but with max_model_len=128 at most 127"),
        ("very long " * 500, "with max_model_len=128 at most 127"),
        ({"prompt_token_ids": [2048]}, "Token id 2048 is out of the vocabulary: ids are 0 to 2047"),
        ({"prompt_token_ids": [-1]}, "Token id -1 is out of the vocabulary"),
        ({"prompt_token_ids": [0.5]}, "must hold integers only"),
        ({"text": "hello"}, "A prompt must be text"),
        (17, "A prompt must be text"),
        (None, "A prompt must be text"),
        ("half a pair: \ud83d", "surrogate"),
    ],
)
def test_a_bad_prompt(unharmed: LLM, prompt: Any, says: str) -> None:
    assert says in sentence(RequestError, lambda: unharmed.generate([prompt], GREEDY))
    # Nor does it take the good prompts of its call along into the engine.
    assert says in sentence(RequestError, lambda: unharmed.generate(["The moon", prompt], GREEDY))


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1, -1e-9, "0.5", None, True])
def test_a_sampling_parameter_that_is_no_sensible_number(unharmed: LLM, name: str, value: Any) -> None:
    said = sentence(RequestError, lambda: unharmed.generate("The moon", SamplingParams(**{name: value})))
    assert said.startswith(f"{name} must be ")
    assert said.endswith(f"got {value!r}.")


@pytest.mark.parametrize(
    "params",
    [
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": 1.5},
        {"top_k": -2},
        {"top_k": 1.5},
        {"max_tokens": 0},
        {"max_tokens": -3},
        {"max_tokens": 2.0},
        {"min_tokens": -1},
        {"min_tokens": 9, "max_tokens": 8},
        {"seed": -1},
        {"seed": 2**64},
        {"seed": 0.5},
        {"max_tokens": 10**400},
        {"top_k": 10**5000},
        {"temperature": 10**400},
        {"temperature": 1e300},
        {"repetition_penalty": 1e-300},
        {"repetition_penalty": 1e300},
        {"ignore_eos": "yes"},
        {"stop": "\ud800"},
        {"bad_words": ["\ud800"]},
        {"extra_args": {"x": object()}},
        {"extra_args": {"x": 10**5000}},
        {"extra_args": {"x": "\ud800"}},
        {"stop": ""},
        {"stop": ["fine", ""]},
        {"stop": [5]},
        {"stop_token_ids": [-1]},
        {"stop_token_ids": ["5"]},
    ],
    ids=lambda params: next(iter(params)),
)
def test_a_sampling_parameter_out_of_its_range(unharmed: LLM, params: dict[str, Any]) -> None:
    said = sentence(RequestError, lambda: unharmed.generate("The moon", SamplingParams(**params)))
    assert said.startswith(f"{next(iter(params))} must ")


def test_numbers_of_other_kinds_become_plain_ones() -> None:
    class Grade(enum.IntEnum):
        BEST = 3

    given: dict[str, Any] = {
        "temperature": np.float64(0.5),
        "top_p": np.float32(0.5),
        "max_tokens": np.int64(7),
        "top_k": Grade.BEST,
    }
    params = SamplingParams(**given)
    assert [type(value) for value in (params.temperature, params.top_p)] == [float, float]
    assert [type(value) for value in (params.max_tokens, params.top_k)] == [int, int]
    assert msgspec.json.decode(msgspec.json.encode(params), type=SamplingParams) == params


@pytest.mark.parametrize(
    ("request_id", "prompt", "priority"),
    [
        ("\ud800", "The moon", 0),
        ("fine", {"prompt": "The moon", "cache_salt": "\ud800"}, 0),
        ("fine", {"prompt_token_ids": [9], "prompt": "\ud800"}, 0),
        ("fine", "The moon", 10**400),
    ],
)
def test_what_no_trace_could_hold(unharmed: LLM, request_id: str, prompt: Any, priority: int) -> None:
    sentence(RequestError, lambda: unharmed.llm_engine.add_request(request_id, prompt, GREEDY, priority))


def test_embeddings_that_the_dtype_of_the_model_cannot_hold(unharmed: LLM) -> None:
    embeds = torch.full((3, unharmed.llm_engine.model.hidden_size), 1e300, dtype=torch.float64)
    assert "float32" in sentence(RequestError, lambda: unharmed.generate({"prompt_embeds": embeds}, GREEDY))


def no_number(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
    return logits * math.nan


def hide_all(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
    return torch.full_like(logits, -math.inf) if output else logits


class Spoiler:
    """Spoils the logits of the requests that ask for it."""

    def validate_params(self, sampling_params: SamplingParams) -> None:
        """Whatever is asked is allowed."""

    def new_req_logits_processor(self, sampling_params: SamplingParams) -> RequestLogitsProcessor | None:
        return {"nan": no_number, "hide": hide_all}.get((sampling_params.extra_args or {}).get("spoil", ""))


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("how", "says", "num_tokens"), [("nan", "not finite", 0), ("hide", "every one is masked", 1)])
def test_a_row_that_cannot_be_sampled_ends_alone(
    tmp_path: Path, how: str, says: str, num_tokens: int, temperature: float, async_scheduling: bool
) -> None:
    file = tmp_path / "run.jsonl"
    llm = LLM(MODEL, trace=file, logits_processors=[Spoiler()], **ARGS, async_scheduling=async_scheduling)
    spoiled = SamplingParams(temperature=temperature, max_tokens=12, logprobs=2, extra_args={"spoil": how})
    with llm.llm_engine:
        (alone,) = llm.generate("The moon", GREEDY)
        bad, good = llm.generate(["Once upon a time", "The moon"], [spoiled, GREEDY])
    assert bad.outputs[0].finish_reason == "error"
    assert bad.error is not None and says in bad.error
    assert len(bad.outputs[0].token_ids) == num_tokens
    assert good.outputs[0].token_ids == alone.outputs[0].token_ids
    trace = read_trace(file)
    assert "null" not in "".join(line for line in file.read_text().splitlines() if '"forward.logits"' in line)
    assert not check_trace(trace)
    assert replay(trace).divergence is None


def test_embeddings_that_overflow_inside_the_model(unharmed: LLM) -> None:
    embeds = torch.full((20, unharmed.llm_engine.model.hidden_size), 1e38)
    (output,) = unharmed.generate({"prompt_embeds": embeds}, SamplingParams(max_tokens=3))
    assert output.outputs[0].finish_reason in ("error", "length")


def test_no_token_is_left_to_sample(unharmed: LLM) -> None:
    (moon,) = unharmed.get_tokenizer().encode("m", add_special_tokens=False)
    params = SamplingParams(allowed_token_ids=[moon], bad_words=["m"])
    said = sentence(RequestError, lambda: unharmed.generate("The moon", params))
    assert said.startswith("allowed_token_ids must ")


SAY = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("messages", "more"),
    [
        (SAY, {"chat_template": "{{ 1/0 }}"}),
        (SAY, {"chat_template": "{{ '%s' * 3 % 1 }}"}),
        (SAY, {"chat_template": 5}),
        (SAY, {"chat_template_kwargs": {"add_generation_prompt": True}}),
        (SAY, {"chat_template_kwargs": {"messages": []}}),
        (SAY, {"chat_template_kwargs": {5: 5}}),
        (SAY, {"chat_template_kwargs": 5}),
        (5, {}),
        ([5], {}),
        ([[5]], {}),
        ("Hello", {}),
        (["Hello"], {}),
        ([{"role": "user", "content": "\ud800"}], {}),
    ],
)
def test_a_conversation_that_is_none(unharmed: LLM, messages: Any, more: dict[str, Any]) -> None:
    sentence(RequestError, lambda: unharmed.chat(messages, GREEDY, **more))


def test_a_search_that_is_none(unharmed: LLM) -> None:
    wrong: Any = GREEDY
    assert "BeamSearchParams" in sentence(RequestError, lambda: unharmed.beam_search("The moon", wrong))
    for penalty in (math.nan, -math.inf, 1e300, 10**400):
        said = sentence(RequestError, lambda: BeamSearchParams(beam_width=2, max_tokens=2, length_penalty=penalty))  # noqa: B023
        assert said.startswith("length_penalty must be in [-10, 10], got ")


def test_two_requests_of_one_name(unharmed: LLM) -> None:
    unharmed.llm_engine.add_request("twin", "The moon", GREEDY)
    said = sentence(RequestError, lambda: unharmed.llm_engine.add_request("twin", "The sun", GREEDY))
    assert "'twin'" in said
    unharmed.llm_engine.abort_request("twin")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"max_model_len": 10**6}, "max_model_len"),
        ({"block_size": 0}, "block_size must be an integer >= 1, got 0"),
        ({"block_size": "16"}, "block_size"),
        ({"max_num_seqs": -1}, "max_num_seqs must be an integer >= 1, got -1"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be an integer >= 1"),
        ({"gpu_memory_utilization": math.nan}, "gpu_memory_utilization must be in (0, 1]"),
        ({"policy": "fair"}, "fair"),
        ({"dtype": "float8"}, "float8"),
        ({"max_num_sequences": 4}, "did you mean max_num_seqs?"),
    ],
    ids=repr,
)
def test_a_bad_engine_argument(args: dict[str, Any], says: str) -> None:
    assert says in sentence(ConfigError, lambda: LLM(model=MODEL, **{**ARGS, **args}))


def test_a_pool_in_which_the_longest_request_cannot_fit(tmp_path: Path) -> None:
    # 128 tokens are 8 blocks of 16, and block 0 is the null block: 9 are just enough.
    trace = tmp_path / "trace.jsonl"
    said = sentence(ConfigError, lambda: LLM(model=MODEL, trace=trace, **{**ARGS, "num_gpu_blocks_override": 8}))
    assert "max_model_len=128" in said
    assert not trace.exists()
    llm = LLM(model=MODEL, **{**ARGS, "num_gpu_blocks_override": 9})
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    (output,) = llm.generate("Once upon a time", params)
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 128
    llm.llm_engine.close()


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    for name in (str(tmp_path / "nowhere"), "orrery-huge"):
        assert name in sentence(ModelError, partial(LLM, model=name, **ARGS))
    sentence(ConfigError, lambda: LLM(model="", **ARGS))


def test_a_folder_that_holds_no_model(tmp_path: Path) -> None:
    assert "config.json" in sentence(ModelError, lambda: LLM(model=str(tmp_path), **ARGS))
    (tmp_path / "config.json").write_text("not JSON at all")
    sentence(ModelError, lambda: LLM(model=str(tmp_path), **ARGS))


def test_a_model_of_another_architecture(tiny_model_path: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model_path, tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["MambaForCausalLM"], "model_type": "mamba"}
    (folder / "config.json").write_text(json.dumps(config))
    said = sentence(ModelError, lambda: LLM(model=str(folder), **ARGS))
    assert "MambaForCausalLM" in said
    assert "LlamaForCausalLM" in said, "it says what is supported"


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["gone", "cut short"])
def test_a_model_with_a_damaged_file(tiny_model_path: Path, tmp_path: Path, file: str, damage: str) -> None:
    folder = shutil.copytree(tiny_model_path, tmp_path / "copy")
    content = (folder / file).read_bytes()
    (folder / file).unlink()
    if damage == "cut short":
        (folder / file).write_bytes(content[: len(content) // 2])
    sentence(ModelError, lambda: LLM(model=str(folder), **ARGS))


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    said = sentence(TraceError, lambda: LLM(model=MODEL, trace=tmp_path / "taken" / "trace.jsonl", **ARGS))
    assert "cannot be written" in said


@pytest.mark.parametrize(
    ("argument", "value", "allowed"),
    [
        ("quantization", "fp8", "int8, int4"),
        ("attention_backend", "FLASH_ATTN", "auto, torch, triton, cpu, flash_attn, flashinfer"),
        ("dtype", "int8", "auto, float32, float16, bfloat16"),
        ("compilation_level", 2, "0, 3"),
        ("trace_level", "loud", "off, control, forward, full"),
    ],
)
def test_a_value_that_is_none_of_a_few_is_refused_with_those(argument: str, value: object, allowed: str) -> None:
    with pytest.raises(ConfigError, match=f"^{argument} must be one of {allowed}, got {value!r}.$"):
        EngineConfig.from_args("orrery-tiny", **{argument: value})


def test_a_dtype_goes_by_vllms_and_torchs_names_too() -> None:
    for given, meant in (("half", "float16"), ("float", "float32"), (torch.bfloat16, "bfloat16")):
        assert EngineConfig.from_args("orrery-tiny", dtype=given).model.dtype == meant
