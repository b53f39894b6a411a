"""The app without a browser: what its pages hold, without torch, and what they say when something is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from engine.trace.file import parse_trace
from sim.timeline import Timeline
from tests.viz.conftest import shipped
from tests.viz.drawn import Drawn
from viz.cut import UNPLANNED
from viz.figures.parts import Selection
from viz.figures.stage import stage
from viz.gallery import DEFAULT, GALLERY, situation
from viz.open_trace import SHIPPED, shipped_names
from viz.views import VIEWS

_APP = Path(__file__).parents[2] / "viz" / "app.py"
_LAST = shipped("prefix-hit").steps[-1]


@pytest.fixture(autouse=True)
def started_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `streamlit run viz/app.py` starts it; the tests' own arguments are no trace."""
    monkeypatch.setattr(sys, "argv", [str(_APP)])


def opened(**address: str | int) -> dict[str, Any]:
    """What the app sends to its board when an address is opened."""
    test = AppTest.from_file(str(_APP), default_timeout=60)
    for name, value in address.items():
        test.query_params[name] = str(value)
    test.run()
    assert not test.exception
    (board,) = [element.proto.json for element in test.main if element.type == "bidi_component"]
    data: dict[str, Any] = json.loads(board)
    return data


def test_opens_where_the_default_trace_is_worth_seeing() -> None:
    data, shown = opened(), situation(DEFAULT)
    assert shown is not None
    assert data["step"] == shown.step
    drawn = Drawn(data["parts"]["header"])
    assert drawn.one(data_divergences=0)
    assert int(drawn.one(data_decisions=None)["data-decisions"]) > 100


def test_address_chooses_trace_step_and_view() -> None:
    data = opened(trace="preemption", step=5, view="kv", req=1, block=3)
    drawn = Drawn(data["parts"]["stage"])
    assert data["step"] == 5
    assert drawn.one(data_panel="kv")
    assert not drawn.all(data_panel="scheduler")
    assert drawn.one(data_detail=3)


def test_gallery_is_complete_and_each_step_shows_its_situation() -> None:
    assert sorted(each.name for each in GALLERY) == shipped_names()
    drawn = Drawn(opened(page="gallery")["parts"]["stage"])
    assert [element["data-situation"] for element in drawn.all(data_situation=None)] == [e.name for e in GALLERY]


@pytest.mark.parametrize("number", [0, 999, -1, "last"])
def test_step_out_of_range_is_said_and_the_nearest_is_shown(number: int | str) -> None:
    data = opened(trace="prefix-hit", step=number)
    assert f"There is no step {number}: this trace holds steps 1 to {_LAST}." in Drawn(data["parts"]["header"]).text
    assert data["step"] in (1, _LAST)


@pytest.mark.parametrize("step", ["--5", "9" * 5000, "²", "1.5", "\0"])
def test_a_step_that_is_no_number_is_said(step: str) -> None:
    assert "There is no step" in Drawn(opened(trace="prefix-hit", step=step)["parts"]["header"]).text


def test_a_number_longer_than_any_is_left_out() -> None:
    assert opened(trace="prefix-hit", req="9" * 5000, block="9" * 5000)["step"] == opened(trace="prefix-hit")["step"]


@pytest.mark.parametrize("name", ["a\0b", "~nosuchuser/x", "/dev/zero", "/dev", "x" * 5000])
def test_a_name_that_no_trace_has_is_refused_in_a_sentence(name: str) -> None:
    header = Drawn(opened(trace=name)["parts"]["header"])
    assert "cannot be read" in header.text
    assert header.one(role="alert")


def test_a_pipe_is_no_trace(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "no regular file" in Drawn(opened(trace=str(tmp_path / "pipe"))["parts"]["header"]).text


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"not a trace\n", "is not an Orrery trace"),
        (b"", "is not an Orrery trace: it is empty"),
        (b'{"type":"header","schema_version":99}\n', "has trace version 99; this Orrery reads version 1"),
        (b"\x00\xff\xfe", "is not an Orrery trace"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_trace_is_refused_in_a_sentence(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    path = tmp_path / "foreign.jsonl"
    if content is not None:
        path.write_bytes(content)
    parts = opened(trace=str(path))["parts"]
    header = Drawn(parts["header"])
    assert sentence in header.text
    assert header.one(role="alert")
    assert len(Drawn(parts["stage"]).all(data_situation=None)) == len(GALLERY), "there is a way on"


def test_a_page_that_does_not_exist_is_said_and_the_gallery_is_shown() -> None:
    parts = opened(page="nope")["parts"]
    assert "There is no page nope: the pages are step, gallery, live, quiz, what-if." in Drawn(parts["header"]).text
    assert len(Drawn(parts["stage"]).all(data_situation=None)) == len(GALLERY)
    assert not Drawn(opened(page="gallery")["parts"]["header"]).all(role="alert")


def test_a_trace_cut_short_is_shown_up_to_its_end(tmp_path: Path) -> None:
    whole = (SHIPPED / "prefix-hit.jsonl").read_bytes()
    path = tmp_path / "cut.jsonl"
    path.write_bytes(whole[: len(whole) // 2])
    data = opened(trace=str(path), step=3)
    assert "cut.jsonl was cut short" in Drawn(data["parts"]["header"]).text
    assert 3 <= data["last"] < _LAST
    assert data["step"] == 3


def test_a_trace_cut_within_a_plan_claims_nothing_that_it_does_not_know(tmp_path: Path) -> None:
    lines = (SHIPPED / "prefix-hit.jsonl").read_bytes().splitlines(keepends=True)
    planned = next(i for i, line in enumerate(lines) if b'"step.scheduled"' in line)
    row = next(i for i, line in enumerate(lines) if b'"schedule.request"' in line)
    path = tmp_path / "cut.jsonl"
    told = set()
    for end in range(next(i for i, line in enumerate(lines) if b'"step.started"' in line) + 1, planned + 1):
        path.write_bytes(b"".join(lines[:end]) + b'{"type":')
        parts = opened(trace=str(path), step=1)["parts"]
        drawn, header = Drawn(parts["stage"]), Drawn(parts["header"])
        assert drawn.text.count(UNPLANNED) == 3  # scheduler, why, forward pass
        assert "Nothing was decided" not in drawn.text
        assert "Nobody." not in drawn.text
        places = {name: drawn.numbers(name) for name in ("data_waiting", "data_undecided", "data_row")}
        assert list(places.values()).count([0]) == 1, "r0 is in one place"
        told.add(next(name for name, serials in places.items() if serials))
        told_reasons = sum(int(group["data-decisions"]) for group in drawn.all(data_reason=None))
        assert told_reasons >= (end > row) + 3 * (end >= row)
        verdict = header.one(data_divergences=0)
        assert "good" not in verdict.classes
        assert "divergences; the trace was cut short" in header.text
        assert "✓" not in header.text
    assert told == {"data_waiting", "data_undecided", "data_row"}


def test_every_end_that_a_trace_can_have_is_drawn() -> None:
    lines = (SHIPPED / "preemption.jsonl").read_bytes().splitlines(keepends=True)
    for end in range(2, len(lines), 7):
        timeline = Timeline(parse_trace(b"".join(lines[:end]), "cut.jsonl"))
        if timeline.steps:
            for view in VIEWS:
                drawn = Drawn(
                    stage(timeline, timeline.step(timeline.steps[-1]), Selection(view=view, request=0, block=3))
                )
                assert drawn.text


def test_an_edited_decision_is_a_divergence(tmp_path: Path) -> None:
    lines = (SHIPPED / "prefix-hit.jsonl").read_text().splitlines()
    edited = next(i for i, line in enumerate(lines) if '"schedule.request"' in line)
    lines[edited] = lines[edited].replace('"num_scheduled_tokens":32', '"num_scheduled_tokens":31')
    path = tmp_path / "edited.jsonl"
    path.write_text("\n".join(lines) + "\n")
    assert Drawn(opened(trace=str(path), step=1)["parts"]["header"]).one(data_divergences=1)


_WITHOUT_TORCH = """
import sys

class Without:
    # a finder that does not find what another one would

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        hidden = name.split(".")[0] in ("torch", "transformers", "triton", "xgrammar")
        return None if hidden else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path = [Without(finder) for finder in sys.meta_path]
del sys.argv[0]
from streamlit.testing.v1 import AppTest

for address in ({}, {"page": "gallery"}, {"page": "live"}):
    test = AppTest.from_file(sys.argv[0], default_timeout=60)
    for name, value in address.items():
        test.query_params[name] = value
    test.run()
    assert not test.exception, test.exception
    print(next(element.proto.json for element in test.main if element.type == "bidi_component"))
assert "torch" not in sys.modules
"""


def test_opens_and_replays_where_torch_cannot_be_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_TORCH, str(_APP)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    step, gallery, live = (json.loads(line)["parts"] for line in done.stdout.splitlines())
    assert "0 divergences" in Drawn(step["header"]).text
    assert Drawn(gallery["stage"]).all(data_situation=None)
    assert "pip install 'llm-orrery[engine]'" in Drawn(live["header"]).text


def test_the_help_has_the_words_that_the_panels_use() -> None:
    words = (_APP.parent / "components" / "help.html").read_text(encoding="utf-8")
    for word in ("evicted", "cached", "budget", "slot", "super-sequence"):
        assert word in words.partition("<h2>Keys")[0]


# --- an impossible trace --------------------------------------------------------------------------------------------


def broken_at(tmp_path: Path, step: int, tag: str, old: str, new: str) -> Path:
    """The trace `prefix-hit`, with the first event of a type at or after a step edited."""
    lines = (SHIPPED / "prefix-hit.jsonl").read_text().splitlines()
    edited = next(
        place
        for place, line in enumerate(lines)
        if f'"type":"{tag}"' in line and json.loads(line)["step"] >= step and old in line
    )
    lines[edited] = lines[edited].replace(old, new)
    path = tmp_path / "broken.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def impossible(tmp_path: Path) -> Path:
    """A trace in which step 10 gives a request a block that does not exist."""
    return broken_at(tmp_path, 10, "kv.allocated", '"block_ids":[9,', '"block_ids":[9999,')


@pytest.mark.parametrize("view", [name for name in VIEWS if name not in ("events", "checks")])
def test_a_view_that_an_impossible_event_keeps_from_being_drawn_says_so(impossible: Path, view: str) -> None:
    data = opened(trace=str(impossible), step=12, view=view)
    drawn = Drawn(data["parts"]["stage"])
    assert data["step"] == 12
    if VIEWS[view].group == "step":
        assert drawn.one(data_panel="undrawn")
        assert "9999" in drawn.text
        assert {e["data-act"] for e in drawn.all(data_act=None)} >= {"view:checks", "view:events"}
    assert Drawn(opened(trace=str(impossible), step=9, view=view)["parts"]["stage"]).all(data_panel=None)


def test_the_events_and_the_rules_of_an_impossible_trace_can_be_read(impossible: Path) -> None:
    events = Drawn(opened(trace=str(impossible), step=12, view="events")["parts"]["stage"])
    assert events.all(data_event=None)
    assert "cannot be told" in events.text
    checks = Drawn(opened(trace=str(impossible), step=12, view="checks")["parts"]["stage"])
    assert checks.all(data_violation=None)
    assert not checks.all(data_panel="undrawn")


def test_what_the_trace_cannot_tell_is_no_reason_to_hide_the_step_before(impossible: Path) -> None:
    drawn = Drawn(opened(trace=str(impossible), step=9)["parts"]["stage"])
    assert drawn.one(data_panel="scheduler")
    assert not drawn.all(data_panel="undrawn")


def test_lists_that_do_not_fit_together_are_told_in_a_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = (SHIPPED / "fsm-choice.jsonl").read_text().splitlines()
    for place, line in enumerate(lines):
        event = json.loads(line)
        if event["type"] == "grammar.bitmask":
            lines[place] = json.dumps(event | {"num_allowed": []})
    path = tmp_path / "short.jsonl"
    path.write_text("\n".join(lines) + "\n")
    drawn = Drawn(opened(trace=str(path), step=2, view="guided")["parts"]["stage"])
    assert drawn.one(data_panel="undrawn")
    assert "This cannot be shown (IndexError: list index out of range)" in drawn.text
    assert "This could not be shown" in caplog.text, "where it went wrong is in the log"


def test_a_quiz_of_a_trace_that_contradicts_itself_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = broken_at(tmp_path, 10, "kv.lookup", '"step":10,', '"step":1,')
    parts = opened(page="quiz", trace=str(path))["parts"]
    assert "This cannot be shown (KeyError: 2)" in Drawn(parts["header"]).text
    assert len(Drawn(parts["stage"]).all(data_situation=None)) == len(GALLERY), "there is a way on"


def test_a_written_path_is_opened_once_also_if_it_cannot_be_drawn(impossible: Path) -> None:
    test = AppTest.from_file(str(_APP), default_timeout=60)
    test.query_params["page"] = "gallery"
    test.run()
    test.text_input[0].input("nowhere.jsonl").run()
    assert "cannot be read" in test.error[0].value
    test.text_input[0].input(f" {impossible} ").run()
    assert not test.exception
    assert test.query_params["trace"] == str(impossible)


@pytest.mark.parametrize("search", ["scheduled > 3", "hit_rate < 1", "r0", "block 3"])
def test_searching_an_impossible_trace_ends_in_a_step_or_a_sentence(impossible: Path, search: str) -> None:
    parts = opened(trace=str(impossible), step=12, find=search, view="checks")["parts"]
    assert Drawn(parts["finder"]).text


def test_a_trace_without_a_step_says_so_and_leads_to_others(tmp_path: Path) -> None:
    path = tmp_path / "begun.jsonl"
    path.write_bytes((SHIPPED / "prefix-hit.jsonl").read_bytes().splitlines(keepends=True)[0])
    parts = opened(trace=str(path), view="life")["parts"]
    assert "This trace holds no step yet." in Drawn(parts["header"]).text
    assert Drawn(parts["stage"]).one(data_act="page:gallery")


def test_a_long_page_name_is_shortened_in_the_sentence() -> None:
    said = Drawn(opened(page="x" * 3000)["parts"]["header"]).text
    assert f"There is no page {'x' * 40}…: the pages are step" in said
