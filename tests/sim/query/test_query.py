"""Questions to a trace: the steps they find are those that a plain look through the events finds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.cli import main
from engine.errors import QueryError
from engine.trace import events as ev
from sim.query.changes import block_changes, request_changes, serial_of
from sim.query.find import steps_where
from sim.query.names import NAMES
from sim.query.predicate import Predicate
from sim.timeline import Timeline

GALLERY = Path(__file__).parents[3] / "viz" / "traces"


@pytest.fixture(scope="module")
def crowd() -> Timeline:
    return Timeline.open(GALLERY / "preemption.jsonl")


def found(timeline: Timeline, question: str) -> list[int]:
    return list(steps_where(timeline, Predicate(question), timeline.steps))


def test_questions_about_steps(crowd: Timeline) -> None:
    series = crowd.series
    assert found(crowd, "preempted") == [each.step for each in series if each.preemptions] != []
    assert found(crowd, "free_blocks < 4 and not preempted") == [
        each.step for each in series if each.free_blocks < 4 and not each.preemptions
    ]
    assert found(crowd, "prefill + decode == tokens") == crowd.steps
    assert found(crowd, "2 <= step < 5") == [2, 3, 4]
    assert found(crowd, "waiting > 10000") == []


def test_questions_about_requests(crowd: Timeline) -> None:
    decodes = {
        event.step
        for event in crowd.events
        if isinstance(event, ev.ScheduleRequest) and event.request == 1 and event.phase == "decode"
    }
    taken_back = {e.step for e in crowd.events if isinstance(e, ev.SchedulePreempted) and e.victim == 1}
    assert found(crowd, 'request == "r1" and phase == "decode"') == sorted(decodes - taken_back) != []
    resumed = {e.step for e in crowd.events if isinstance(e, ev.ScheduleRequest) and e.admission == "resumed"}
    assert found(crowd, "admission == 'resumed'") == sorted(resumed) != []


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ("free_block < 4", "free_block"),
        ("__import__('os')", "question"),
        ("preempted and", "question"),
        ("phase", "is text: compare it"),
        ("phase < 3", "phase"),
        ("x" * 600, "at most 500 characters"),
    ],
)
def test_what_cannot_be_asked_is_refused(question: str, sentence: str) -> None:
    with pytest.raises(QueryError, match=re.escape(sentence)):
        Predicate(question)


def test_every_name_can_be_asked_for(crowd: Timeline) -> None:
    for name, known in NAMES.items():
        found(crowd, f"{name} == 0" if known.kind == "number" else f"{name} == 'nobody'")


def test_the_past_of_a_block_backwards_is_its_future_forwards(crowd: Timeline) -> None:
    positions = len(crowd.events)
    for block in range(1, 6):
        past = [change.position for change in block_changes(crowd, block, positions, "before")]
        future = [change.position for change in block_changes(crowd, block, 0, "after")]
        assert past == future[::-1] != []
        named = [
            at
            for at, event in enumerate(crowd.events)
            if isinstance(event, ev.KVAllocated) and block in event.block_ids
        ]
        allocated = [c.position for c in block_changes(crowd, block, 0, "after") if isinstance(c.event, ev.KVAllocated)]
        assert allocated == named
    with pytest.raises(QueryError, match="There is no block 99999: the pool has blocks 0 to"):
        list(block_changes(crowd, 99_999, 0, "after"))


def test_what_happened_to_a_request(crowd: Timeline) -> None:
    victim = next(event.victim for event in crowd.events if isinstance(event, ev.SchedulePreempted))
    serial = serial_of(crowd, f"r{victim}")
    kinds = [change.kind for change in request_changes(crowd, serial, 0, "after")]
    assert kinds[0] == "added" and "preempted" in kinds and kinds.index("preempted") < len(kinds) - 1
    with pytest.raises(QueryError):
        serial_of(crowd, "nobody")


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(GALLERY / "preemption.jsonl")
    assert main(["query", trace, "preempted"]) == 0
    assert "preempted" in capsys.readouterr().out
    assert main(["query", trace, "--block", "3", "--before", "9"]) == 0
    assert main(["query", trace, "--request", "r1", "--kind", "preempted"]) == 0
    assert main(["query", trace, "nonsense > 3"]) == 2
    assert "nonsense" in capsys.readouterr().err
    assert main(["query", trace]) == 2
    assert "Ask one thing" in capsys.readouterr().err
