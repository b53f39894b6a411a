"""Guided requests through the whole engine: with everything else that a request or a batch may be at the same time."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from engine.errors import RequestError
from engine.guided_decoding import GuidedDecodingParams
from engine.llm import LLM
from engine.outputs import RequestOutput
from engine.sampling_params import SamplingParams
from engine.trace import events as ev
from engine.trace.file import Trace, read_trace

PROMPT = "Once upon a time there was a girl called Lily, and she had a box with a number on it:"
DIGITS = r"([0-9]{2,5} )*[0-9]+"


def guided(max_tokens: int = 40, temperature: float = 1.0, seed: int = 1, **rest: Any) -> SamplingParams:
    """Sampling parameters; what `GuidedDecodingParams` knows goes there."""
    forms = {name: rest.pop(name) for name in GuidedDecodingParams.__struct_fields__ if name in rest}
    return SamplingParams(
        guided_decoding=GuidedDecodingParams(**forms),
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        **rest,
    )


def text_of(output: RequestOutput) -> str:
    assert output.error is None
    return output.outputs[0].text


def events_of(trace: Trace, kind: type[ev.Event]) -> list[Any]:
    return [event for event in trace.events if isinstance(event, kind)]


def test_a_choice_is_one_of_its_texts(llm: LLM) -> None:
    outputs = llm.generate([PROMPT] * 4, [guided(choice=["Positive", "Negative"], seed=seed) for seed in range(4)])
    assert {text_of(output) for output in outputs} <= {"Positive", "Negative"}
    assert {output.outputs[0].finish_reason for output in outputs} == {"stop"}


def test_several_grammars_and_free_rows_share_a_batch(llm: LLM) -> None:
    params = [
        guided(regex=DIGITS),
        guided(json_object=True),
        SamplingParams(max_tokens=20, seed=1),
        guided(choice=["a"]),
    ]
    together = [output.outputs[0].token_ids for output in llm.generate([PROMPT] * 4, params)]
    alone = [llm.generate(PROMPT, each)[0].outputs[0].token_ids for each in params]
    assert together == alone


def test_a_bad_grammar_fails_its_request_alone(llm: LLM) -> None:
    bad = [guided(regex="(ab"), guided(grammar='root ::= "a" root'), guided(json={"type": "obj"})]
    outputs = llm.generate([PROMPT] * 5, [guided(choice=["yes"]), *bad, SamplingParams(max_tokens=5, seed=1)])
    assert text_of(outputs[0]) == "yes"
    assert len(outputs[4].outputs[0].token_ids) == 5
    assert [output.outputs[0].finish_reason for output in outputs[1:4]] == ["error"] * 3
    assert [output.error for output in outputs[1:4]] == [
        "Regex parsing error at position 4: The parenthesis is not closed",
        "the grammar is empty: no text matches it",
        'Unsupported type "obj"',
    ]


def test_a_grammar_that_runs_into_nothing_ends_its_request_alone(llm: LLM) -> None:
    # What the grammar allows, the other parameter does not.
    hidden = guided(regex="z", allowed_token_ids=llm.get_tokenizer().encode("a", add_special_tokens=False))
    outputs = llm.generate([PROMPT] * 2, [hidden, SamplingParams(max_tokens=8, seed=1)])
    assert outputs[0].error == "No token may be sampled: every one is masked."
    assert len(outputs[1].outputs[0].token_ids) == 8


def test_a_grammar_with_too_long_a_compilation_fails_its_request_alone() -> None:
    slow = guided(json={"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2000)}})
    with LLM("orrery-tiny", grammar_compile_timeout=1e-6).llm_engine as engine:
        engine.add_request("slow", PROMPT, slow)
        engine.add_request("free", PROMPT, SamplingParams(max_tokens=3, seed=1))
        last: dict[str, RequestOutput] = {}
        while engine.has_unfinished_requests():
            last |= {output.request_id: output for output in engine.step()}
    assert last["slow"].error == "not compiled within grammar_compile_timeout, 1e-06 s"
    assert len(last["free"].outputs[0].token_ids) == 3


def test_sizes_are_limited(tmp_path: Path) -> None:
    llm = LLM("orrery-tiny", max_grammar_bytes=80, grammar_cache_bytes=2_000)
    outputs = llm.generate([PROMPT] * 3, [guided(regex="a" * 90), guided(regex="[a-z]{1,400}x"), guided(choice=["a"])])
    llm.llm_engine.close()
    assert outputs[0].error == "the grammar has 90 bytes, max_grammar_bytes allows 80"
    assert re.fullmatch(
        r"compiled, the grammar takes [\d,]+ bytes, grammar_cache_bytes allows 2,000", outputs[1].error or ""
    )
    assert text_of(outputs[2]) == "a"


# --- with everything else -------------------------------------------------------------------------------------------


def crowded(trace: Path, **engine_args: Any) -> list[list[int]]:
    """Eight greedy and random guided requests in an engine; their tokens."""
    params = [
        guided(regex=r"([0-9]{2,5} ){5,9}[0-9]+", temperature=0.0, max_tokens=24),
        guided(regex=r"[a-z ]{30,60}\.", max_tokens=40),
        guided(json={"type": "array", "items": {"enum": ["sun", "moon"]}, "minItems": 6}, temperature=0.0),
        guided(json_object=True, seed=5),
        guided(grammar='root ::= ("(" [a-z]+ ")"){8,12}', seed=7, max_tokens=30),
        guided(choice=["the sun", "the moon"], temperature=0.0),
        guided(regex=r"(ha)+!", max_tokens=20),
        SamplingParams(max_tokens=30, temperature=0.0),
    ]
    llm = LLM("orrery-tiny", trace=trace, **engine_args)
    outputs = llm.generate([PROMPT + " " * n for n in range(len(params))], params)
    llm.llm_engine.close()
    assert [output.error for output in outputs] == [None] * len(params)
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """What the crowd puts out where nothing disturbs it."""
    return crowded(tmp_path_factory.mktemp("plain") / "run.jsonl", enable_prefix_caching=False)


@pytest.mark.parametrize(
    ("engine_args", "happened"),
    [
        ({"max_num_batched_tokens": 8}, "chunks"),
        ({"block_size": 4, "num_gpu_blocks_override": 32, "max_model_len": 120}, "preemptions"),
        ({"block_size": 4, "max_num_seqs": 1}, "hits"),
        ({"async_scheduling": True}, "overlap"),
        (
            {"async_scheduling": True, "block_size": 4, "num_gpu_blocks_override": 32, "max_model_len": 120},
            "preemptions",
        ),
    ],
    ids=["chunked prefill", "preemption", "prefix hits", "async", "async and preemption"],
)
def test_outputs_do_not_depend_on_how_they_are_scheduled(
    plain: list[list[int]], tmp_path: Path, engine_args: dict[str, Any], happened: str
) -> None:
    assert crowded(tmp_path / "run.jsonl", **engine_args) == plain
    trace = read_trace(tmp_path / "run.jsonl")
    guided_serials = {event.request for event in events_of(trace, ev.GrammarReady)}
    match happened:
        case "chunks":
            assert any(event.truncated_by == "token_budget" for event in events_of(trace, ev.ScheduleRequest))
        case "preemptions":
            assert guided_serials & {event.victim for event in events_of(trace, ev.SchedulePreempted)}
        case "hits":
            assert any(event.num_hit_tokens > 0 for event in events_of(trace, ev.KVLookup))
        case "overlap":
            assert any(event.num_awaited_tokens > 0 for event in events_of(trace, ev.ScheduleRequest))


def test_several_completions_share_a_compilation(tmp_path: Path) -> None:
    llm = LLM("orrery-tiny", trace=tmp_path / "run.jsonl")
    (output,) = llm.generate(PROMPT, guided(regex=DIGITS, n=4))
    llm.llm_engine.close()
    assert all(re.fullmatch(DIGITS, each.text) or each.finish_reason == "length" for each in output.outputs)
    assert len({each.text for each in output.outputs}) > 1
    ready = events_of(read_trace(tmp_path / "run.jsonl"), ev.GrammarReady)
    assert [event.automaton is not None for event in ready] == [True, False, False, False]


def test_a_stop_string_cuts_a_guided_output(llm: LLM) -> None:
    (output,) = llm.generate(PROMPT, guided(regex=r"abc(def)+xyz", stop=["fd"]))
    assert text_of(output) == "abcde"
    assert output.outputs[0].stop_reason == "fd"


def test_min_tokens_holds_as_far_as_the_grammar_goes(llm: LLM) -> None:
    longer, ended = llm.generate(
        [PROMPT] * 2, [guided(regex="a*", min_tokens=9), guided(choice=["yes"], min_tokens=30)]
    )
    assert len(longer.outputs[0].token_ids) > 9
    assert text_of(ended) == "yes"
    assert ended.outputs[0].finish_reason == "stop"


@pytest.mark.parametrize(
    "rest", [{"ignore_eos": True}, {"allowed_token_ids": list(range(100, 400))}, {"min_tokens": 39}]
)
def test_a_finished_grammar_admits_only_the_end(llm: LLM, rest: dict[str, Any]) -> None:
    for asked in ({"choice": ["1"]}, {"regex": "[0-9]"}):
        params = guided(**asked, **(rest if "allowed_token_ids" not in rest else {}))
        (output,) = llm.generate(PROMPT, params)
        assert len(text_of(output)) == 1
        assert output.outputs[0].finish_reason == "stop"


def test_logprobs_are_those_of_the_model_itself(llm: LLM) -> None:
    (output,) = llm.generate(PROMPT, guided(choice=["Zebra"], logprobs=2))
    (free,) = llm.generate(PROMPT, SamplingParams(max_tokens=1, logprobs=2, temperature=0.0))
    assert output.outputs[0].logprobs is not None and free.outputs[0].logprobs is not None
    first, likeliest = output.outputs[0].logprobs[0], free.outputs[0].logprobs[0]
    assert len(first) == 3  # what was allowed, and the two likeliest, which were not
    assert set(likeliest) < set(first)


def test_a_model_without_an_end_cannot_be_guided(llm: LLM) -> None:
    import msgspec

    processor = llm.llm_engine._processor
    model = processor._model
    processor._model = msgspec.structs.replace(model, eos_token_ids=())
    try:
        with pytest.raises(RequestError, match="needs a model with an end-of-sequence token"):
            llm.generate(PROMPT, guided(choice=["a"]))
    finally:
        processor._model = model


def test_an_id_may_be_used_again_while_its_grammar_is_compiled(tmp_path: Path) -> None:
    with LLM("orrery-tiny").llm_engine as engine:
        engine.add_request("same", PROMPT, guided(regex="a{5}"))
        engine.abort_request("same")
        engine.add_request("same", PROMPT, guided(regex="b{5}"))
        last = _drain(engine)[-1]
    assert text_of(last) == "bbbbb"


def _drain(engine: Any) -> list[RequestOutput]:
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


def test_json_is_written_in_one_line_where_the_engine_says_so() -> None:
    llm = LLM("orrery-tiny", guided_decoding_disable_any_whitespace=True)
    (output,) = llm.generate(
        PROMPT, guided(json={"type": "array", "items": {"const": 1}, "minItems": 3, "maxItems": 3})
    )
    llm.llm_engine.close()
    assert text_of(output) == json.dumps([1, 1, 1])
