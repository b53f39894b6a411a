"""Life lines say what the states say: on shipped traces, on a crowd, and on a run with more lives than lines."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from engine.core.messages import RequestStatus
from engine.trace import events as ev
from engine.trace.file import read_trace
from engine.trace.recorder import Recorder
from sim.summary import LifeLine
from sim.timeline import StepView, Timeline
from tests.core.driver import core_of, header, record_crowd, run_step
from tests.viz.conftest import shipped
from tests.viz.drawn import Drawn
from viz.figures.life_lines import LINES, STEPS, life_lines
from viz.figures.life_words import longest_gap
from viz.figures.parts import Selection
from viz.gallery import GALLERY

NOBODY = Selection()
SHIPPED = ("first-token", "chunked-prefill", "preemption", "json-schema", "spec-draft", "crowded")


@pytest.fixture(scope="module", params=[*SHIPPED, "crowd", "connected", "long"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    if request.param in SHIPPED:
        return shipped(request.param)
    path = tmp_path_factory.mktemp("trace") / "run.jsonl"
    connected, num_requests = request.param == "connected", 150 if request.param == "long" else 30
    timeline = Timeline(record_crowd(path, seed=3, num_requests=num_requests, connected=connected))
    assert timeline.summary().num_preemptions > 0
    return timeline


def some(timeline: Timeline, number: int = 6) -> list[StepView]:
    steps = timeline.steps
    return [timeline.step(step) for step in steps[:: -(-len(steps) // number)]]


def told_kind(view: StepView, serial: int) -> set[str]:
    """What the state of a step says that a request does in it."""
    request = view.planned.requests.get(serial)
    if request is None or request.finished:
        return set()
    row = view.plan.rows.get(serial)
    if request.status is RequestStatus.RUNNING:
        if row is None:
            return {"idle"}
        return {"decode"} if row.phase == "decode" else {"again"} if request.num_preemptions else {"prefill"}
    return {
        {
            RequestStatus.WAITING: "waiting",
            RequestStatus.WAITING_FOR_FSM: "grammar",
            RequestStatus.WAITING_FOR_REMOTE_KVS: "remote",
            RequestStatus.PREEMPTED: "preempted",
        }[request.status]
    }


def test_each_line_does_in_each_step_what_the_state_says(run: Timeline) -> None:
    for current in some(run, 2):
        drawn = Drawn(life_lines(run, current, NOBODY))
        lanes = drawn.numbers("data_lane")
        assert lanes
        columns = drawn.numbers("data_column")
        for view in map(run.step, columns[:: -(-len(columns) // 12)]):
            for serial in lanes:
                stretches = drawn.all(data_life=serial)
                kinds = {e["data-kind"] for e in stretches if int(e["data-from"]) <= view.step <= int(e["data-to"])}
                assert kinds == told_kind(view, serial), (view.step, serial)


def test_every_token_of_a_line_is_a_tick(run: Timeline) -> None:
    brought: dict[int, list[int]] = {}
    for event in run.events:
        if isinstance(event, ev.UpdateRequest) and event.appended:
            brought.setdefault(event.request, []).append(event.step)
    for view in some(run):
        drawn = Drawn(life_lines(run, view, NOBODY))
        columns = drawn.numbers("data_column")
        for ticks in drawn.all(data_tokens_of=None):
            steps = brought.get(int(ticks["data-tokens-of"]), [])
            assert list(map(int, ticks["data-steps"].split())) == [step for step in steps if step in columns]
            assert ticks["data-steps"] == "" or drawn.all(data_kind=None)


def test_beginnings_and_ends_are_those_of_the_requests(run: Timeline) -> None:
    end = run.state_at(len(run.events))
    for view in some(run):
        drawn = Drawn(life_lines(run, view, NOBODY))
        columns = drawn.numbers("data_column")
        told = [end.requests[serial] for serial in drawn.numbers("data_lane")]
        ended = [r for r in told if r.finish_step in columns]
        assert [int(e["data-end"]) for e in drawn.all(data_end=None)] == [r.finish_step for r in ended]
        assert [e["data-reason"] for e in drawn.all(data_reason=None)] == [r.finish_reason for r in ended]
        first = [r.first_token_step for r in told if r.first_token_step in columns]
        assert drawn.numbers("data_first_token") == first
        assert drawn.numbers("data_now") == [view.step]


def test_the_words_are_the_numbers_of_the_selected_request(run: Timeline) -> None:
    view = run.step(run.steps[-1])
    for life in list(run.life_lines.values())[:40]:
        drawn = Drawn(life_lines(run, view, Selection(request=life.request.serial)))
        assert drawn.numbers("data_caption") == [life.request.serial]
        assert drawn.numbers("data_ttft") == [life.request.ttft_ns] * (life.request.ttft_ns is not None)
        itls = life.request.itls_ns
        assert drawn.numbers("data_itl_longest") == ([max(itls)] if itls else [])
        medians = [float(e["data-itl-median"]) for e in drawn.all(data_itl_median=None)]
        assert medians == ([median(itls)] if itls else [])
        gap = longest_gap(life)
        assert drawn.numbers("data_gap") == ([gap.last] if gap else [])
        if life.request.serial in drawn.numbers("data_lane"):
            measured = {e["data-measure"]: int(e["data-ns"]) for e in drawn.all(data_measure=None)}
            assert measured.get("TTFT", life.request.ttft_ns) == life.request.ttft_ns
        else:
            assert f"go to step {life.added + 1}" in drawn.text


def test_the_longest_gap_of_a_victim_is_its_preemption() -> None:
    timeline = shipped("preemption")
    drawn = Drawn(life_lines(timeline, timeline.step(21), Selection(request=3)))
    assert "preempted in step 21" in drawn.text
    assert {e["data-kind"] for e in drawn.all(data_life=3)} == {"prefill", "decode", "preempted", "again"}


def test_a_column_tells_how_long_its_step_took_and_when_none_ran(run: Timeline) -> None:
    drawn = Drawn(life_lines(run, run.step(run.steps[0]), NOBODY))
    columns = [int(e["data-column"]) for e in drawn.all(data_column=None)]
    series = {facts.step: facts for facts in run.series if facts.step in columns}
    assert drawn.numbers("data_took") == [facts.duration_ns for facts in series.values()]
    assert drawn.numbers("data_longest") == [max(drawn.numbers("data_took"))]
    for column in drawn.all(data_column=None)[1:]:
        facts, before = series[int(column["data-column"])], series[int(column["data-column"]) - 1]
        paused = facts.started_ns - before.ended_ns > facts.duration_ns
        assert ("no step ran" in column["data-tip"]) == paused


def lives_in(life: LifeLine, columns: list[int]) -> bool:
    return life.added < columns[-1] and (life.finished is None or life.finished >= columns[0])


def test_of_more_lives_than_lines_the_rest_is_counted(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("trace") / "run.jsonl"
    timeline = Timeline(record_crowd(path, seed=3, num_requests=150))
    hidden = 0
    for view in some(timeline):
        newest = max(view.planned.requests, default=0)
        drawn = Drawn(life_lines(timeline, view, Selection(request=newest)))
        columns = drawn.numbers("data_column")
        assert len(columns) <= STEPS
        living = [serial for serial, life in timeline.life_lines.items() if lives_in(life, columns)]
        lanes = drawn.numbers("data_lane")
        assert set(lanes) <= set(living)
        assert lanes == sorted(lanes)
        assert newest in lanes
        assert set(view.planned.running) <= set(lanes)
        assert len(lanes) == min(len(living), LINES)
        assert sum(drawn.numbers("data_hidden")) == len(living) - len(lanes)
        assert len(drawn.elements) < 1000
        hidden += len(living) - len(lanes)
    assert hidden > 0


def test_steps_in_which_nobody_lives_say_so(tmp_path: Path) -> None:
    recorder = Recorder.to_file(tmp_path / "run.jsonl", header())
    run_step(core_of(header(), recorder))
    recorder.close()
    timeline = Timeline(read_trace(tmp_path / "run.jsonl"))
    drawn = Drawn(life_lines(timeline, timeline.step(1), NOBODY))
    assert "No request lives in steps 1 to 1." in drawn.text
    assert not drawn.all(data_lane=None)


def test_every_situation_has_lives_at_its_step() -> None:
    for situation in GALLERY:
        timeline = shipped(situation.name)
        assert Drawn(life_lines(timeline, timeline.step(situation.step), NOBODY)).all(data_lane=None)
