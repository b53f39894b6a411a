"""A trace is a proof: replay regenerates it from its inputs, and no decision in it can be altered unnoticed."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.trace.events import (
    EVENT_TYPES,
    Event,
    EventClass,
    KVUncached,
    OutputText,
    SchedulePreempted,
    StepOutput,
)
from engine.trace.file import Trace, read_trace, write_trace
from sim.replay import replay
from tests.core.driver import record_crowd

EAGLE = {"method": "eagle", "num_speculative_tokens": 3}
DECISIONS = {tag: struct for tag, struct in EVENT_TYPES.items() if struct.kind is EventClass.DECISION}
FIELDS = [
    (tag, name) for tag, struct in DECISIONS.items() for name in struct.__struct_fields__ if name not in ("seq", "ts")
]


@pytest.fixture(scope="module")
def crowds(tmp_path_factory: pytest.TempPathFactory) -> list[Trace]:
    """Both policies, both hash algorithms, with and without prefix caching, drafts and a KV connector."""
    folder = tmp_path_factory.mktemp("crowds")
    return [
        record_crowd(folder / f"{index}.jsonl", seed=index, num_requests=60, **arguments)
        for index, arguments in enumerate[dict[str, Any]](
            [
                {"policy": "fcfs"},
                {"policy": "priority"},
                {"policy": "priority", "prefix_caching_hash_algo": "builtin"},
                {"policy": "fcfs", "enable_prefix_caching": False},
                {"policy": "fcfs", "speculative_config": {**EAGLE, "disable_by_batch_size": 4}},
                {"policy": "fcfs", "connected": True},
                {"policy": "priority", "connected": True},
            ]
        )
    ]


def test_replay_regenerates_every_decision(crowds: list[Trace]) -> None:
    seen = Counter(type(event).__struct_config__.tag for trace in crowds for event in trace.events)
    assert set(DECISIONS) <= set(seen), "the crowds must reach every type of decision"
    assert any(isinstance(e, SchedulePreempted) and e.was_scheduled for trace in crowds for e in trace.events)
    assert any(isinstance(e, KVUncached) for trace in crowds for e in trace.events)
    for trace in crowds:
        report = replay(trace)
        assert report.divergence is None
        assert report.num_decisions == len(trace.of_class(EventClass.DECISION)) > 1000


def altered(value: Any) -> Any:
    """Another value of the same kind."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return value + "x"
        case None:
            return 1
        case list() | tuple():
            return [*value[:-1], altered(value[-1])] if value else [1]
    raise TypeError(value)


@pytest.mark.parametrize(("tag", "field"), FIELDS)
def test_an_altered_field_is_named(crowds: list[Trace], tag: str, field: str) -> None:
    trace = next(trace for trace in crowds if any(isinstance(event, DECISIONS[tag]) for event in trace.events))
    forged = Trace(trace.header, copy.copy(trace.events))
    index = next(index for index, event in enumerate(trace.events) if isinstance(event, DECISIONS[tag]))
    event = copy.copy(trace.events[index])
    setattr(event, field, altered(getattr(event, field)))
    forged.events[index] = event

    divergence = replay(forged).divergence

    assert divergence is not None
    assert divergence.recorded is event
    assert [difference.field for difference in divergence.differences] == [field]


@pytest.mark.parametrize("tag", DECISIONS)
def test_a_missing_or_invented_decision_is_found(crowds: list[Trace], tag: str) -> None:
    trace = next(trace for trace in crowds if any(isinstance(event, DECISIONS[tag]) for event in trace.events))
    index = next(index for index, event in enumerate(trace.events) if isinstance(event, DECISIONS[tag]))
    events = trace.events

    missing = replay(Trace(trace.header, events[:index] + events[index + 1 :])).divergence
    assert missing is not None
    invented = replay(Trace(trace.header, events[: index + 1] + events[index:])).divergence
    assert invented is not None
    assert invented.recorded is events[index]


def test_other_tokens_lead_elsewhere(crowds: list[Trace]) -> None:
    trace = crowds[0]
    events: list[Event] = copy.copy(trace.events)
    index = next(i for i, e in enumerate(events) if isinstance(e, StepOutput) and any(e.sampled_token_ids))
    forged = copy.deepcopy(events[index])
    assert isinstance(forged, StepOutput)
    next(tokens for tokens in forged.sampled_token_ids if tokens)[0] += 1
    events[index] = forged
    divergence = replay(Trace(trace.header, events)).divergence
    assert divergence is not None
    assert divergence.step == forged.step


def test_an_input_the_core_refuses_is_a_divergence(crowds: list[Trace]) -> None:
    trace = crowds[0]
    index = next(i for i, e in enumerate(trace.events) if isinstance(e, StepOutput))
    divergence = replay(Trace(trace.header, trace.events[: index + 1] + trace.events[index:])).divergence
    assert divergence is not None
    assert "refuses" in divergence.why or "leads to" in divergence.why or "lacks" in divergence.why


def test_a_cut_trace_replays_as_far_as_it_goes(tmp_path: Path, crowds: list[Trace]) -> None:
    path = tmp_path / "whole.jsonl"
    write_trace(path, crowds[0].header, crowds[0].events)
    data = path.read_bytes()
    for share in (0.3, 0.6, 0.9):
        cut = tmp_path / "cut.jsonl"
        cut.write_bytes(data[: data.index(b"\n", int(len(data) * share)) - 1])
        trace = read_trace(cut)
        assert trace.truncated is not None
        report = replay(trace)
        assert report.divergence is None
        assert report.num_decisions == len(trace.of_class(EventClass.DECISION)) > 0


@pytest.mark.parametrize("connected", [False, True])
def test_a_trace_cut_between_two_lines_is_cut_and_not_wrong(tmp_path: Path, connected: bool) -> None:
    trace = record_crowd(tmp_path / "crowd.jsonl", seed=5, num_requests=6, connected=connected)
    said = set()
    for length in range(len(trace.events)):
        report = replay(Trace(trace.header, trace.events[:length]))
        assert report.divergence is None, (length, report.divergence)
        said.add(report.truncated)
    assert None in said, "some cuts are between two calls"
    assert "The trace ends in the middle of step 2." in said


def test_a_decision_missing_before_the_end_is_a_divergence(crowds: list[Trace]) -> None:
    trace = crowds[0]
    last = max(i for i, event in enumerate(trace.events) if event.kind is EventClass.DECISION)
    text = OutputText(seq=10**9, request=0, delta="", stop=None, finished=True)
    report = replay(Trace(trace.header, [*trace.events[:last], text]))
    assert report.divergence is not None and "lacks" in report.divergence.why


@pytest.mark.parametrize("algo", ["sha256", "builtin"])
@pytest.mark.parametrize("hash_seed", ["1", "20251129"])
def test_replay_does_not_depend_on_pythonhashseed(tmp_path: Path, algo: str, hash_seed: str) -> None:
    path = tmp_path / "crowd.jsonl"
    trace = record_crowd(path, seed=7, prefix_caching_hash_algo=algo, policy="priority")
    result = subprocess.run(
        [sys.executable, "-m", "engine.cli", "replay", str(path)],
        env={"PYTHONHASHSEED": hash_seed, "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == f"{len(trace.of_class(EventClass.DECISION))} decisions, 0 divergences"


def test_two_runs_give_the_same_bytes(tmp_path: Path) -> None:
    def masked(path: Path) -> bytes:
        trace = record_crowd(path, seed=3)
        for event in trace.events:
            event.ts = 0
        write_trace(path, trace.header, trace.events)
        return path.read_bytes()

    assert masked(tmp_path / "a.jsonl") == masked(tmp_path / "b.jsonl")


def test_the_command_names_the_first_divergence(tmp_path: Path) -> None:
    path = tmp_path / "crowd.jsonl"
    record_crowd(path, seed=1)
    lines = path.read_bytes().splitlines()
    number = next(i for i, line in enumerate(lines) if b'"schedule.request"' in line)
    event = msgspec.json.decode(lines[number])
    event["budget_left"] += 1
    lines[number] = msgspec.json.encode(event)
    path.write_bytes(b"\n".join(lines) + b"\n")
    result = subprocess.run(
        [sys.executable, "-m", "engine.cli", "replay", str(path)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert f"event {event['seq']}, schedule.request in step {event['step']}: budget_left" in result.stdout
    assert result.stdout.splitlines()[-1].endswith("1 divergence")
