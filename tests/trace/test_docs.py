"""The documentation of the trace is what the types say, and its schema describes real files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from engine.trace import docs
from engine.trace.events import EVENT_TYPES, AnyEvent, Event, Header
from engine.trace.examples import HEADER, example_events
from tests.core.driver import record_crowd


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = docs.schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path = tmp_path_factory.mktemp("trace") / "crowd.jsonl"
    record_crowd(path, seed=1)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_files_are_current() -> None:
    write_them = "they are written by `python -m engine.trace.docs`"
    assert (docs.FOLDER / "trace.md").read_text(encoding="utf-8") == docs.markdown(), write_them
    assert (docs.FOLDER / "trace.schema.json").read_text(encoding="utf-8") == docs.schema_text(), write_them


def test_they_are_written_where_they_belong(tmp_path: Path) -> None:
    docs.write(tmp_path / "docs")
    assert sorted(path.name for path in (tmp_path / "docs").iterdir()) == ["trace.md", "trace.schema.json"]
    assert docs.FOLDER.name == "docs" and (docs.FOLDER.parent / "engine").is_dir()


def test_every_type_and_every_field_is_told() -> None:
    text = docs.markdown()
    for tag, event in EVENT_TYPES.items():
        section = text.partition(f"### {tag}\n")[2].partition("\n##")[0]
        assert f"*{event.kind.value}, level {event.level}.*" in section
        for name in set(event.__struct_fields__) - set(Event.__struct_fields__):
            assert f"| `{name}` |" in section
    without_meaning = [line for line in text.splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert without_meaning == []


def test_every_type_has_an_example_that_can_be_read_back() -> None:
    examples = example_events()
    assert list(examples) == list(EVENT_TYPES)
    for tag, event in examples.items():
        line = msgspec.json.encode(event)
        assert json.loads(line)["type"] == tag
        assert msgspec.json.decode(line, type=AnyEvent) == event
        assert line.decode() in docs.markdown()
    assert msgspec.json.decode(msgspec.json.encode(HEADER), type=Header) == HEADER


def test_links_lead_somewhere() -> None:
    text = docs.markdown()
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    anchors = {heading.lower().replace(".", "").replace(" ", "-") for heading in headings}
    links = set(re.findall(r"\]\(#([^)]+)\)", text))
    assert len(links) > len(EVENT_TYPES)
    assert links <= anchors


def test_real_lines_follow_the_schema(validator: Draft202012Validator, lines: list[dict[str, Any]]) -> None:
    seen: dict[str, int] = {}
    for line in lines:
        seen[line["type"]] = seen.get(line["type"], 0) + 1
        if seen[line["type"]] <= 20:
            validator.validate(line)
    assert {"header", "request.added", "schedule.preempted", "kv.touched", "kv.uncached", "executor.failed"} <= set(
        seen
    )
    for event in example_events().values():
        validator.validate(json.loads(msgspec.json.encode(event)))


@pytest.mark.parametrize(
    ("of_type", "change"),
    [
        ("schedule.request", {"num_scheduled_tokens": "5"}),
        ("schedule.request", {"admission": "guest"}),
        ("schedule.request", {"type": "schedule.guess"}),
        ("kv.freed", {"block_ids": [1, None]}),
        ("header", {"level": "loud"}),
    ],
    ids=str,
)
def test_wrong_lines_do_not(
    validator: Draft202012Validator, lines: list[dict[str, Any]], of_type: str, change: dict[str, Any]
) -> None:
    line = next(line for line in lines if line["type"] == of_type)
    assert validator.is_valid(line)
    assert not validator.is_valid({**line, **change})


def test_a_line_that_lacks_a_field_does_not(validator: Draft202012Validator, lines: list[dict[str, Any]]) -> None:
    line = next(line for line in lines if line["type"] == "kv.cached")
    for field in ("block_ids", "hashes", "parent", "type"):
        assert not validator.is_valid({name: value for name, value in line.items() if name != field})
