"""Guided runs in the trace: every fact of a picture is there, replay proves it, the invariants hold."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.guided.recompute import recomputing_backend
from engine.guided_decoding import GuidedDecodingParams
from engine.llm import LLM
from engine.sampling_params import SamplingParams
from engine.trace import events as ev
from engine.trace.file import Trace, read_trace
from sim.invariants import check
from sim.replay import replay
from sim.timeline import Timeline
from viz.explain import explain

PROMPT = "The answer to the question is"
FORMS: list[dict[str, Any]] = [
    {"choice": ["yes", "yeah", "no"]},
    {"regex": "[0-9]{3}-[0-9]{2}"},
    {"json": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}},
    {"choice": ["yes", "yeah", "no"]},
    {"regex": "(broken"},
    {"grammar": 'root ::= "(" root ")" | "x"'},
]


@pytest.fixture(scope="module", params=[False, True], ids=["synchronous", "asynchronous"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("guided") / "run.jsonl"
    llm = LLM("orrery-tiny", trace=path, max_automaton_states=40, async_scheduling=request.param)
    params = [
        SamplingParams(guided_decoding=GuidedDecodingParams(**form), max_tokens=24, seed=3, min_tokens=1)
        for form in FORMS
    ]
    llm.generate([PROMPT] * len(params), params)
    llm.llm_engine.close()
    return path


@pytest.fixture(scope="module")
def trace(path: Path) -> Trace:
    return read_trace(path)


def events_of(trace: Trace, kind: type[ev.Event]) -> list[Any]:
    return [event for event in trace.events if isinstance(event, kind)]


def test_the_automaton_is_told_once_and_states_are_numbered_on_it(trace: Trace) -> None:
    automata = {event.request: event.automaton for event in events_of(trace, ev.GrammarReady)}
    assert set(automata) == {0, 1, 2, 3, 5}
    assert automata[3] is None  # the grammar of request 0
    assert automata[0] is not None and automata[0].num_states == 6
    assert automata[5] is not None and automata[5].beyond == 39
    for event in events_of(trace, ev.GrammarAdvanced):
        drawn = automata[event.request] or automata[0]
        states = (event.before, *event.after)
        assert all(state is not None and 0 <= state < drawn.num_states for state in states)
        if event.terminated:
            assert event.after[-1] in drawn.accepting


def test_states_follow_each_other(trace: Trace) -> None:
    state: dict[int, int] = {}
    for event in events_of(trace, ev.GrammarAdvanced):
        assert event.before == state.get(event.request, 0)
        state[event.request] = event.after[-1]


def test_masks_are_counted_and_shown_once(trace: Trace) -> None:
    shown: dict[str, bytes] = {}
    for event in events_of(trace, ev.GrammarBitmaskFilled):
        assert not shown.keys() & event.words.keys()
        shown |= event.words
        for counts, digests in zip(event.num_allowed, event.digests, strict=True):
            assert [int.from_bytes(shown[digest], "little").bit_count() for digest in digests] == counts
    assert len(shown) > 5


def test_every_token_was_allowed_by_its_mask(trace: Trace) -> None:
    shown: dict[str, bytes] = {}
    masks: dict[tuple[int, int], bytes] = {}
    num_checked = 0
    for event in trace.events:
        if isinstance(event, ev.GrammarBitmaskFilled):
            shown |= event.words
            for serial, (digest,) in zip(event.requests, event.digests, strict=True):
                masks[event.step, serial] = shown[digest]
        elif isinstance(event, ev.UpdateRequest) and event.appended and (event.step, event.request) in masks:
            (token_id,) = event.appended
            assert masks[event.step, event.request][token_id // 8] >> token_id % 8 & 1
            num_checked += 1
    assert num_checked == sum(len(event.after) for event in events_of(trace, ev.GrammarAdvanced)) > 20


def test_a_request_waits_for_its_grammar_first(trace: Trace) -> None:
    statuses = [
        (event.old, event.new)
        for event in events_of(trace, ev.RequestStatusChanged)
        if event.request == 1 and not event.new.startswith("finished")
    ]
    assert statuses == [(None, "waiting_for_fsm"), ("waiting_for_fsm", "waiting"), ("waiting", "running")]
    (failed,) = events_of(trace, ev.GrammarFailed)
    assert failed.request == 4
    assert "The parenthesis is not closed" in failed.why


def test_a_replay_recomputes_every_mask_and_state(trace: Trace) -> None:
    report = replay(trace, recomputing_backend(trace.header))
    assert report.divergence is None
    assert report.num_recomputed == len(trace.of_class(ev.DERIVED)) > 30
    assert report.num_trusted == 0
    assert report.num_decisions == len(trace.of_class(ev.DECISION))


def test_a_replay_without_the_backend_trusts_them(trace: Trace) -> None:
    report = replay(trace)
    assert report.divergence is None
    assert report.num_trusted == len(trace.of_class(ev.DERIVED))
    assert report.num_decisions == len(trace.of_class(ev.DECISION))


@pytest.mark.parametrize("field", ["num_allowed", "after", "words"])
def test_a_wrong_mask_or_state_is_found(path: Path, tmp_path: Path, field: str) -> None:
    lines = path.read_text().splitlines()
    wanted = {"after": "grammar.advanced"}.get(field, "grammar.bitmask")
    place = next(
        i for i, line in enumerate(lines) if f'"type":"{wanted}"' in line and (field != "words" or "=" in line)
    )
    event = json.loads(lines[place])
    match field:
        case "num_allowed":
            event["num_allowed"][0][0] += 1
        case "after":
            event["after"][0] += 1
        case "words":
            name = next(iter(event["words"]))
            event["words"][name] = base64.b64encode(b"\xff" * 256).decode()
    lines[place] = json.dumps(event)
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text("\n".join(lines) + "\n")
    trace = read_trace(wrong)
    divergence = replay(trace, recomputing_backend(trace.header)).divergence
    assert divergence is not None
    assert [difference.field for difference in divergence.differences] == [field]
    assert replay(trace).divergence is None


def test_the_invariants_hold(trace: Trace) -> None:
    assert check(trace).violations == []


def test_the_state_knows_where_an_output_stands(trace: Trace) -> None:
    state = Timeline(trace).state_at(len(trace.events))
    assert state.requests[0].automaton == state.requests[3].automaton is not None
    assert state.requests[0].automaton_state in state.requests[0].automaton.accepting  # type: ignore[union-attr]
    assert state.requests[4].failure is not None


def test_a_step_says_what_its_grammars_do(trace: Trace) -> None:
    timeline = Timeline(trace)
    said = [reason.sentence for step in timeline.steps for reason in explain(timeline.step(step))]
    assert any(sentence.startswith("the grammars allow, of 2,048 tokens: ") for sentence in said)
    assert "its grammar goes on: state 0 → 1" in said
    assert "its grammar has come to its end: nothing may follow" in said


def test_the_command_says_what_was_recomputed(path: Path) -> None:
    command = [sys.executable, "-m", "engine.cli", "replay", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    trace = read_trace(path)
    assert f"{len(trace.of_class(ev.DERIVED))} derived events were recomputed and agree" in result.stdout
    assert result.stdout.splitlines()[-1] == f"{len(trace.of_class(ev.DECISION))} decisions, 0 divergences"
