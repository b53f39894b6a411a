"""The what-if page: what it draws of several runs, and what its address asks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from streamlit.testing.v1 import AppTest

from engine.trace import events as ev
from engine.trace.file import write_trace
from sim.diff import diff_runs, diff_states
from sim.fork import Change, fork_trace
from sim.timeline import Timeline
from tests.viz.conftest import shipped
from tests.viz.drawn import Drawn
from tests.viz.test_app import opened
from viz.figures.parts import Selection
from viz.figures.what_if import columns, outcome, parting
from viz.open_trace import SHIPPED, shipped_names
from viz.what_if import Run, suggestions

_APP = Path(__file__).parents[2] / "viz" / "app.py"


@pytest.fixture(autouse=True)
def started_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(_APP)])


def runs_of(name: str, change: Change) -> list[Run]:
    recorded = shipped(name)
    forked = Timeline(fork_trace(recorded.trace, change))
    return [Run.of("recorded", name, recorded), Run.of("what if", str(change), forked)]


@pytest.mark.parametrize("name", ["first-token", "preemption", "crowded"])
def test_each_column_is_the_step_of_its_run(name: str) -> None:
    runs = runs_of(name, Change(step=1, knobs={"max_num_seqs": 1}))
    for step in runs[0].timeline.steps[::7]:
        drawn = Drawn(columns(runs, [step, step], Selection()))
        for place, run in enumerate(runs):
            column = drawn.one(data_run=place)
            if step not in run.timeline.steps:
                assert "data-step" not in column.attributes
                continue
            assert column["data-step"] == str(step)
        rows = [row for run in runs if step in run.timeline.steps for row in run.timeline.step(step).plan.rows]
        assert [int(row["data-row"]) for row in drawn.all(data_row=None)] == rows


def test_what_differs_is_outlined() -> None:
    runs = runs_of("preemption", Change(step=1, knobs={"max_num_seqs": 2}))
    html = columns(runs, [22, 22], Selection())
    result = diff_states(*(run.timeline.step(22).planned for run in runs))
    assert result.blocks
    for changed in result.blocks:
        assert f'.course-0 [data-block="{changed.name.split()[1]}"]' in html
    same = columns(runs, [2, 2], Selection())
    assert "--differs" not in same


def test_the_parting_is_the_first_decision_that_differs() -> None:
    runs = runs_of("preemption", Change(step=1, knobs={"num_gpu_blocks": 40}))
    result = diff_runs(runs[0].timeline, runs[1].timeline)
    drawn = Drawn(parting(runs, result, runs[0]))
    assert drawn.one(data_parting=21)
    assert "r3" in drawn.text
    assert isinstance(result.decision and result.decision.first, ev.SchedulePreempted)
    alike = runs_of("preemption", Change(step=1, knobs={"max_num_batched_tokens": 640}))
    words = Drawn(parting(alike, diff_runs(alike[0].timeline, alike[1].timeline), alike[0])).text
    assert "makes no difference" in words


def test_the_outcome_has_the_figures_of_every_run() -> None:
    runs = runs_of("preemption", Change(step=1, knobs={"num_gpu_blocks": 40}))
    drawn = Drawn(outcome(runs, [diff_runs(runs[0].timeline, runs[1].timeline)]))
    assert drawn.one(data_figure="preemptions")
    assert [fate["data-fate"] for fate in drawn.all(data_fate=None)] == ["2", "3"]
    assert len(drawn.all(data_run_line=None)) == 2


@pytest.mark.parametrize("name", shipped_names())
def test_every_suggestion_can_be_asked(name: str) -> None:
    recorded = shipped(name)
    suggested = suggestions(recorded)
    assert suggested
    for suggestion in suggested:
        assert Timeline(fork_trace(recorded.trace, suggestion.change)).steps


def test_a_link_asks_and_aligns() -> None:
    data = opened(page="what-if", trace="preemption", step=22, fork=1, max_num_seqs=2)
    drawn = Drawn(data["parts"]["stage"])
    assert data["last"] == 86
    assert [column["data-step"] for column in drawn.all(data_run=None)] == ["22", "22"]
    by_time = Drawn(
        opened(page="what-if", trace="preemption", step=50, fork=1, max_num_seqs=2, by="time")["parts"]["stage"]
    )
    aligned = [column["data-step"] for column in by_time.all(data_run=None)]
    assert aligned[0] == "50" != aligned[1]


def test_other_traces_stand_beside() -> None:
    drawn = Drawn(opened(page="what-if", trace="preemption", **{"with": "prefix-hit"})["parts"]["stage"])
    assert len(drawn.all(data_run=None)) == 2


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"fork": "3", "num_gpu_blocks": "40"}, "num_gpu_blocks is chosen at the start"),
        ({"fork": "1", "max_num_seqs": "many"}, "max_num_seqs must be a number"),
        ({"fork": "1", "num_gpu_blocks": "3"}, "max_model_len"),
        ({"fork": "999", "max_num_seqs": "1"}, "There is no step 999"),
        ({"fork": "1", "without": "r99"}, "There is no request r99"),
        ({"fork": "1", "max_num_seqs": "-5"}, "max_num_seqs must be an integer >= 1"),
        ({"fork": "1", "max_num_seqs": "9" * 15}, "max_num_seqs must be at most"),
        ({"fork": "1", "enable_prefix_caching": "maybe"}, "must be true or false"),
        ({"with": "nowhere.jsonl"}, "cannot be read"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_said_and_the_recording_is_shown(asked: dict[str, Any], sentence: str) -> None:
    parts = opened(page="what-if", trace="preemption", **asked)["parts"]
    header = Drawn(parts["header"])
    assert header.one(role="alert")
    assert sentence in header.text
    assert len(Drawn(parts["stage"]).all(data_run=None)) == 1


def test_the_form_asks() -> None:
    test = AppTest.from_file(str(_APP), default_timeout=60)
    for name, value in {"page": "what-if", "trace": "preemption"}.items():
        test.query_params[name] = value
    test.run()
    next(field for field in test.number_input if field.label == "max_num_seqs").set_value(1)
    test.button[0].click().run()
    assert not test.exception
    assert test.query_params["max_num_seqs"] in ("1", ["1"])
    assert test.query_params["fork"] in ("1", ["1"])


def asked_by_form(**query: Any) -> AppTest:
    """The app after the form was sent as it stands."""
    test = AppTest.from_file(str(_APP), default_timeout=60)
    for name, value in {"page": "what-if", **query}.items():
        test.query_params[name] = value
    test.run()
    assert not test.exception
    test.button[0].click().run()
    assert not test.exception
    return test


def test_the_form_keeps_what_it_does_not_show(tmp_path: Path) -> None:
    spaced = tmp_path / "my run.jsonl"
    spaced.write_bytes((SHIPPED / "prefix-hit.jsonl").read_bytes())
    asked = {"fork": "1", "policy": "priority", "num_gpu_blocks": "40", "with": str(spaced)}
    test = asked_by_form(trace="preemption", **asked)
    for name, value in asked.items():
        assert test.query_params[name] in (value, [value])


def test_the_form_asks_nothing_by_itself_of_a_recording_with_huge_limits(tmp_path: Path) -> None:
    recorded = shipped("preemption").trace
    limits = msgspec.structs.replace(recorded.header.config.scheduler, max_num_batched_tokens=1 << 60)
    config = msgspec.structs.replace(recorded.header.config, scheduler=limits)
    write_trace(tmp_path / "huge.jsonl", msgspec.structs.replace(recorded.header, config=config), list(recorded.events))
    test = asked_by_form(trace=str(tmp_path / "huge.jsonl"))
    assert "max_num_batched_tokens" not in test.query_params
