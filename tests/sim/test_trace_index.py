"""The index of a large trace says what a pass over the trace says, and is made anew when it no longer fits."""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path

import pytest

import engine.trace.index
import sim.keyframes
import sim.trace_index
from engine.errors import TraceError
from engine.trace.file import read_trace
from engine.trace.open_file import TraceFile
from sim.state import State
from sim.timeline import Timeline
from sim.trace_index import StoredIndex, open_indexed
from tests.core.driver import record_crowd


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Indexes, and keyframes close together, also of a trace of a few thousand events."""
    monkeypatch.setattr(sim.trace_index, "LARGE_TRACE_EVENTS", 100)
    monkeypatch.setattr(sim.keyframes, "_STORED_EVENTS", 200)
    monkeypatch.setenv("ORRERY_CACHE", str(tmp_path / "cache"))


@pytest.fixture(params=["run.jsonl", "run.jsonl.zst"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    record_crowd(tmp_path / request.param, seed=3, speculative_config={"method": "eagle", "num_speculative_tokens": 2})
    return tmp_path / request.param


def kinds(path: Path) -> tuple[type, type]:
    trace, index = open_indexed(path)
    return type(trace), type(index)


def facts(state: State) -> object:
    """A state as plain values."""
    return asdict(state)


def test_any_state_is_that_of_a_trace_in_memory(path: Path) -> None:
    known, indexed = Timeline(read_trace(path)), Timeline.open(path)
    again = Timeline.open(path)
    assert indexed.steps == known.steps
    assert again.series == known.series
    assert again.summary() == known.summary()
    assert again.life_lines == known.life_lines
    assert {s: again.span(s) for s in again.steps} == {s: known.span(s) for s in known.steps}
    assert again.touches.blocks == known.touches.blocks
    assert again.touches.requests == known.touches.requests
    rng = random.Random(0)
    num_events = len(known.events)
    assert num_events > 1000
    for position in [0, num_events, *(rng.randrange(num_events) for _ in range(25))]:
        assert facts(again.state_at(position)) == facts(known.state_at(position))


def test_it_lies_beside_the_trace_and_is_used_the_next_time(path: Path) -> None:
    assert kinds(path) == (TraceFile, StoredIndex)
    index = path.with_name(path.name + ".idx")
    made = index.stat().st_mtime_ns
    assert kinds(path) == (TraceFile, StoredIndex)
    assert index.stat().st_mtime_ns == made


def test_keyframes_spare_folding_from_the_beginning(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Timeline.open(path)
    timeline = Timeline.open(path)
    folded = 0
    fold = State.apply

    def counted(state: State, event: object) -> None:
        nonlocal folded
        folded += 1
        fold(state, event)  # type: ignore[arg-type]

    monkeypatch.setattr(State, "apply", counted)
    timeline.state_at(len(timeline.events))
    assert 0 < folded <= 200


@pytest.mark.parametrize("change", ["other trace", "other code", "half an index", "no index at all"])
def test_one_that_does_not_fit_is_made_anew(path: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Timeline.open(path)
    index = path.with_name(path.name + ".idx")
    if change == "other trace":
        record_crowd(path, seed=4)
    elif change == "other code":
        monkeypatch.setattr(sim.trace_index, "_maker", lambda: "another")
    elif change == "half an index":
        index.write_bytes(index.read_bytes()[: index.stat().st_size // 2])
    else:
        index.write_bytes(b"something else")
    before = index.read_bytes()
    assert Timeline.open(path).series == Timeline(read_trace(path)).series
    assert index.read_bytes() != before


def test_a_damaged_section_is_said(path: Path) -> None:
    Timeline.open(path)
    index = path.with_name(path.name + ".idx")
    data = bytearray(index.read_bytes())
    data[100:140] = bytes(40)
    index.write_bytes(data)
    timeline = Timeline.open(path)
    with pytest.raises(TraceError, match="is damaged: delete it"):
        for position in range(0, len(timeline.events), 100):
            timeline.state_at(position)


def test_where_nothing_can_be_written_it_lies_in_the_users_folder(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "a file" / "below"
    blocked.parent.write_text("")
    places = engine.trace.index._places
    monkeypatch.setattr(engine.trace.index, "_places", lambda trace, folder: [blocked, places(trace, folder)[1]])
    assert kinds(path) == (TraceFile, StoredIndex)
    assert not path.with_name(path.name + ".idx").exists()
    assert list((tmp_path / "cache" / "indexes").iterdir())
    assert kinds(path) == (TraceFile, StoredIndex)
