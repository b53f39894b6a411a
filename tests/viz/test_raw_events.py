"""The raw events of a step: all of them, in order, with the meaning of each field and the exact line."""

from __future__ import annotations

import html
import json
from pathlib import Path

import msgspec
import pytest

from engine.trace import events as ev
from engine.trace.described import doc_of, meanings
from engine.trace.examples import example_events
from sim.timeline import StepView, Timeline
from tests.core.driver import record_crowd, run_step
from tests.viz.conftest import shipped
from tests.viz.drawn import Drawn
from tests.viz.test_explain import Run
from viz.explain import NO_DECISION, explain
from viz.figures.event_fields import brief, value
from viz.figures.parts import Selection
from viz.figures.raw_events import concerned, raw_events
from viz.open_trace import SHIPPED


def drawn(view: StepView, **selected: object) -> Drawn:
    return Drawn(raw_events(view, Selection("events", **selected)))  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=["tiny", "crowd"])
def some_views(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[StepView]:
    if request.param == "tiny":
        timeline = shipped("first-token")
    else:
        timeline = Timeline(record_crowd(tmp_path_factory.mktemp("trace") / "run.jsonl", seed=1, num_requests=40))
    return [timeline.step(number) for number in timeline.steps[::5]]


def test_every_event_of_a_step_has_its_line_in_order(some_views: list[StepView]) -> None:
    for view in some_views:
        events = [*view.preceding, *view.events]
        page = drawn(view)
        assert page.numbers("data_event") == [event.seq for event in events][:160]
        assert page.one(data_only="none")["data-number"] == str(len(events))


def test_the_lines_of_a_type_and_those_of_a_request(some_views: list[StepView]) -> None:
    for view in some_views:
        events = [*view.preceding, *view.events]
        for tag in {str(event.__struct_config__.tag) for event in events}:
            page = drawn(view, only=tag)
            shown = page.numbers("data_event")
            assert shown == [e.seq for e in events if e.__struct_config__.tag == tag]
            assert page.one(data_only=tag)["data-number"] == str(len(shown))
            assert page.one(data_only=tag)["aria-pressed"] == "true"
        serial = next((s for event in events for s in concerned(event)), 0)
        page = drawn(view, only=f"r{serial}")
        assert page.numbers("data_event") == [event.seq for event in events if serial in concerned(event)]


def test_what_does_not_exist_is_no_filter() -> None:
    view = shipped("first-token").step(1)
    assert drawn(view, only="nope").numbers("data_event") == drawn(view).numbers("data_event")
    assert "No event of this step is of that kind" in drawn(view, only="r99").text


def test_an_opened_event_shows_its_fields_their_meaning_and_the_exact_line() -> None:
    lines = {json.loads(line).get("seq"): line for line in (SHIPPED / "preemption.jsonl").read_text().splitlines()}
    view = shipped("preemption").step(21)
    told = {reason.seq: reason for reason in explain(view)}
    for event in view.events:
        page = drawn(view, event=event.seq)
        assert page.one(data_opened=event.seq)
        fields = [row["data-field"] for row in page.all(data_field=None)]
        written = json.loads(lines[event.seq])
        assert {*fields, "type"} >= written.keys()
        line = msgspec.json.encode(event).decode()
        assert line in page.text
        assert json.loads(line).items() >= written.items()
        if event.seq in told:
            assert told[event.seq].sentence in page.text
            assert page.one(data_source=str(told[event.seq].place))
        elif type(event) in NO_DECISION:
            assert NO_DECISION[type(event)].replace("`", "") in page.text


@pytest.mark.parametrize("tag", ev.EVENT_TYPES)
def test_every_type_of_event_is_drawn_with_a_meaning_for_each_field(tag: str) -> None:
    view = shipped("prefix-hit").step(20)
    assert view.before.requests.keys() >= {0, 1}, "those that the examples name"
    event = example_events()[tag]
    event.seq = 10**6
    view.events = [event]
    page = drawn(view, event=event.seq)
    assert page.one(data_opened=event.seq)
    assert all(meanings(type(event))[name] for name in event.__struct_fields__)
    assert doc_of(type(event)).replace("`", "") in page.text


def test_long_values_are_folded_and_whole() -> None:
    numbers = list(range(1000, 1300))
    assert brief(numbers) == "[1000 1001 1002 1003 1004 1005 … 300 values]"
    folded = value(numbers)
    assert folded.startswith("<details")
    assert html.unescape(folded).count("1299") == 1
    assert "<details" not in value(numbers[:24])
    assert brief("x" * 400).endswith("… (400 characters)")


def test_many_events_are_cut_and_counted(tmp_path: Path) -> None:
    run = Run(tmp_path / "run.jsonl", num_blocks=900, max_num_batched_tokens=512, max_num_seqs=64)
    for first in range(60):
        run.add(f"q{first}", 8, first=first)
    run_step(run.core)
    view = run.step(1)
    number = len(view.preceding) + len(view.events)
    assert number > 160
    page = drawn(view)
    assert len(page.numbers("data_event")) == 160
    assert f"… {number - 160} events more: choose a type or a request above" in page.text
