"""n > 1: children with seeds of their own, gathered in one output, which share the blocks of their prompt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import RequestError
from engine.frontend.processor import draw_seed
from engine.llm import LLM
from engine.llm_engine import LLMEngine
from engine.sampling_params import RequestOutputKind, SamplingParams
from engine.trace.events import RequestAborted, RequestAdded, RequestFinished
from engine.trace.file import read_trace
from sim.replay import replay

from .conftest import ARGS, MODEL, STORY, run, tokens_of

THREE = SamplingParams(n=3, seed=11, max_tokens=10, ignore_eos=True)
PROMPT = f"{STORY}, {'there was a harbour and a lighthouse ' * 5}"


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[tuple[LLMEngine, Path]]:
    trace = tmp_path / "trace.jsonl"
    with LLMEngine.from_engine_args(MODEL, trace=trace, **ARGS) as engine:
        yield engine, trace


def test_each_child_is_what_its_seed_alone_would_give(llm: LLM) -> None:
    (output,) = llm.generate(STORY, THREE)
    assert output.finished
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    alone = [SamplingParams(seed=11 + i, max_tokens=10, ignore_eos=True) for i in range(3)]
    assert tokens_of([output]) == tokens_of(llm.generate([STORY] * 3, alone))
    assert len({tuple(tokens) for tokens in tokens_of([output])}) == 3
    for _ in range(4):
        assert llm.generate(STORY, THREE)[0].outputs == output.outputs


def test_prompts_with_different_numbers_of_completions(llm: LLM) -> None:
    params = [SamplingParams(n=n, max_tokens=4, ignore_eos=True) for n in (2, 1, 4)]
    outputs = llm.generate([STORY, "The moon", "Hello"], params)
    assert [len(output.outputs) for output in outputs] == [2, 1, 4]
    assert [output.prompt for output in outputs] == [STORY, "The moon", "Hello"]


def test_the_trace_tells_the_children_apart(recorded: tuple[LLMEngine, Path]) -> None:
    engine, trace = recorded
    engine.add_request("story", PROMPT, SamplingParams(n=3, max_tokens=5, prompt_logprobs=1))
    (last, *_) = run(engine)[::-1]
    assert last.prompt_logprobs is not None
    engine.close()
    events = read_trace(trace)
    added = [event for event in events.events if isinstance(event, RequestAdded)]
    assert [(event.request_id, event.parent_id, event.child_index) for event in added] == [
        ("0_story", "story", 0),
        ("1_story", "story", 1),
        ("2_story", "story", 2),
    ]
    assert [event.sampling_params.seed for event in added] == [draw_seed(0, 0) + i for i in range(3)]
    finished = [event for event in events.events if isinstance(event, RequestFinished)]
    assert sum(event.num_cached_tokens > 0 for event in finished) == 2, "the children share their prompt's blocks"
    assert replay(events).num_divergences == 0


def test_outputs_on_the_way_hold_every_child(recorded: tuple[LLMEngine, Path]) -> None:
    engine, _ = recorded
    engine.add_request("story", STORY, THREE)
    outputs = run(engine)
    assert all(len(output.outputs) == 3 for output in outputs)
    assert [output.finished for output in outputs][-2:] == [False, True]
    assert not any(output.finished for output in outputs[:-1])


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_every_kind_of_output_tells_the_same(recorded: tuple[LLMEngine, Path], kind: RequestOutputKind) -> None:
    engine, _ = recorded
    params = SamplingParams(n=3, seed=11, max_tokens=10, stop=" a", logprobs=1, output_kind=kind)
    engine.add_request("story", STORY, params)
    outputs = run(engine)
    texts, tokens, places = [""] * 3, [[] for _ in range(3)], [0] * 3  # type: ignore[var-annotated]
    for output in outputs:
        for completion in output.outputs:
            if kind is not RequestOutputKind.DELTA:
                texts[completion.index], tokens[completion.index], places[completion.index] = "", [], 0
            texts[completion.index] += completion.text
            tokens[completion.index] += completion.token_ids
            places[completion.index] += len(completion.logprobs or [])
    engine.add_request("again", STORY, SamplingParams(n=3, seed=11, max_tokens=10, stop=" a"))
    (*_, final) = run(engine)
    assert texts == [completion.text for completion in final.outputs]
    assert tokens == tokens_of([final])
    assert places == [len(each) for each in tokens]
    assert (len(outputs) == 1) == (kind is RequestOutputKind.FINAL_ONLY)


def test_aborting_the_request_aborts_its_children(recorded: tuple[LLMEngine, Path]) -> None:
    engine, trace = recorded
    engine.add_request("story", STORY, THREE)
    engine.add_request("other", STORY, THREE)
    engine.step()
    engine.abort_request("story")
    outputs = run(engine)
    assert {output.request_id for output in outputs} == {"other"}
    engine.add_request("story", STORY, THREE)
    assert [output.request_id for output in run(engine)][-1] == "story"
    assert engine.reset_prefix_cache(), "every block has come back"
    engine.close()
    aborted = [event for event in read_trace(trace).events if isinstance(event, RequestAborted)]
    assert [event.requests for event in aborted] == [[0, 1, 2]]


def test_children_that_are_done_are_not_aborted_again(recorded: tuple[LLMEngine, Path]) -> None:
    engine, _ = recorded
    engine.add_request("story", STORY, SamplingParams(n=2, seed=3, max_tokens=30, ignore_eos=True, stop="zzz"))
    engine.add_request("0_moon", "The moon", THREE)
    with pytest.raises(RequestError, match="'0_story' belongs"):
        engine.add_request("0_story", STORY)
    with pytest.raises(RequestError, match="'0_moon' belongs"):
        engine.add_request("moon", STORY, THREE)
    assert {output.request_id for output in run(engine)} == {"story", "0_moon"}


def test_children_end_on_their_own(recorded: tuple[LLMEngine, Path]) -> None:
    engine, _ = recorded
    engine.add_request("story", "The sea was", SamplingParams(n=6, seed=2, max_tokens=20, stop=[" the", "."]))
    outputs = run(engine)
    (*_, last) = outputs
    assert len({len(completion.token_ids) for completion in last.outputs}) > 1, "they end at different times"
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert not engine.has_unfinished_requests()
