"""The checks of a run: every invariant and the replay, as `sim` finds them, at the step that is shown."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from engine.trace import events as ev
from engine.trace.file import parse_trace, read_trace
from sim.invariants import INVARIANTS, check
from sim.replay import replay
from sim.timeline import Timeline
from tests.core.driver import record_crowd
from tests.viz.conftest import shipped
from tests.viz.drawn import Drawn
from viz.figures.invariants import invariants
from viz.figures.parts import Selection
from viz.figures.replay_panel import replay_panel
from viz.open_trace import SHIPPED
from viz.proofs import PROVED_AT_ONCE, checked, replayed

NOBODY = Selection(view="checks")


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    return Timeline(record_crowd(tmp_path_factory.mktemp("trace") / "run.jsonl", seed=1, num_requests=40))


@pytest.fixture(scope="module")
def edited() -> Timeline:
    """A trace in which the wrong request is preempted, in step 21."""
    lines = (SHIPPED / "preemption.jsonl").read_bytes().splitlines(keepends=True)
    place = next(i for i, line in enumerate(lines) if b'"schedule.preempted"' in line)
    assert b'"victim":3' in lines[place]
    lines[place] = lines[place].replace(b'"victim":3', b'"victim":1')
    return Timeline(parse_trace(b"".join(lines), "edited.jsonl"))


def test_every_rule_has_a_line_with_its_statement_and_its_looks(crowd: Timeline) -> None:
    for timeline in (crowd, shipped("first-token")):
        drawn, report = Drawn(invariants(timeline, timeline.step(1), NOBODY)), check(timeline.trace)
        assert {line["data-invariant"] for line in drawn.all(data_invariant=None)} == {i.name for i in INVARIANTS}
        for rule in INVARIANTS:
            assert rule.statement in drawn.text
            line, looks = drawn.one(data_invariant=rule.name), report.num_looks[rule.name]
            assert line["data-looks-of-rule"] == str(looks)
            assert line["data-state-of-rule"] == ("holds" if looks else "unseen")
        assert drawn.one(data_violations=0)
        assert f"hold at each of {len(timeline.events):,} events" in drawn.text


def test_a_broken_rule_is_linked_to_its_step_and_held_before_it(edited: Timeline) -> None:
    report = checked(edited)
    broken = {violation.invariant for violation in report.violations}
    assert "victims" in broken
    for step, state in ((20, "later"), (21, "broken"), (22, "broken")):
        drawn = Drawn(invariants(edited, edited.step(min(step, edited.steps[-1])), NOBODY))
        assert {line["data-violation"] for line in drawn.all(data_violation=None)} == broken
        for name in broken:
            assert drawn.one(data_invariant=name)["data-state-of-rule"] == state
        assert len(drawn.all(data_act="step:21")) == len(broken)
        assert ("in this step" in drawn.text) == (step == 21)
        assert drawn.one(data_violations=len(report.violations))
    assert report.stopped_at is not None
    assert f"Nothing behind event {report.stopped_at:,} could be checked." in drawn.text


def test_the_replay_counts_what_agreed_by_type(crowd: Timeline) -> None:
    for timeline in (crowd, shipped("spec-draft"), shipped("fsm-choice")):
        drawn, report = Drawn(replay_panel(timeline, timeline.step(1), NOBODY)), replay(timeline.trace)
        numbers = {line["data-replayed"]: int(line["data-number"]) for line in drawn.all(data_replayed=None)}
        tags = Counter(str(e.__struct_config__.tag) for e in timeline.events if e.kind is ev.DECISION)
        assert {tag: number for tag, number in numbers.items() if ev.EVENT_TYPES[tag].kind is ev.DECISION} == tags
        assert drawn.one(data_agreed=report.num_decisions, data_differs=0)
        assert ("were taken as recorded" in drawn.text) == (report.num_trusted > 0)


def test_the_first_divergence_stands_recorded_beside_decided(edited: Timeline) -> None:
    drawn = Drawn(replay_panel(edited, edited.step(5), NOBODY))
    assert drawn.one(data_divergence_step=21)
    assert drawn.one(data_act="step:21")
    (differs,) = drawn.all(data_differs_here="yes")
    assert differs["data-field"] == "victim"
    assert "victim13" in drawn.text
    assert "victim came out otherwise" in drawn.text


def test_a_decision_that_is_missing_or_too_much_has_an_empty_side() -> None:
    lines = (SHIPPED / "preemption.jsonl").read_bytes().splitlines()
    place = next(i for i, line in enumerate(lines) if b'"kv.lookup"' in line)
    for changed in ([*lines[:place], *lines[place + 1 :]], [*lines[: place + 1], lines[place], *lines[place + 1 :]]):
        header, *events = map(json.loads, changed)
        numbered = [header, *(event | {"seq": seq} for seq, event in enumerate(events, 1))]
        timeline = Timeline(
            parse_trace(b"".join(json.dumps(each).encode() + b"\n" for each in numbered), "edited.jsonl")
        )
        drawn = Drawn(replay_panel(timeline, timeline.step(1), NOBODY))
        assert replayed(timeline).divergence is not None
        assert drawn.all(data_divergence_step=None)
        assert drawn.all(data_field=None)


def test_a_trace_cut_short_is_not_said_to_agree_in_full() -> None:
    whole = (SHIPPED / "preemption.jsonl").read_bytes()
    timeline = Timeline(parse_trace(whole[: len(whole) // 2], "cut.jsonl"))
    drawn = Drawn(replay_panel(timeline, timeline.step(1), NOBODY))
    assert timeline.trace.truncated is not None
    assert timeline.trace.truncated in drawn.text
    assert "✓" not in drawn.text


def test_a_large_trace_is_proved_when_it_is_asked_for(tmp_path: Path) -> None:
    record_crowd(tmp_path / "run.jsonl", seed=3, num_requests=1200)
    timeline = Timeline(read_trace(tmp_path / "run.jsonl"))
    assert len(timeline.events) > PROVED_AT_ONCE
    view = timeline.step(100)
    for figure in (invariants, replay_panel):
        waits, done = Drawn(figure(timeline, view, NOBODY)), Drawn(figure(timeline, view, Selection(asked=True)))
        assert waits.one(data_act="asked:yes")
        assert f"{len(timeline.events):,} events" in waits.text
        assert not done.all(data_act="asked:yes")
        assert "✓" in done.text
