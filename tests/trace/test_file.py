"""Trace files: what is written is read, what is damaged is named, what is cut short is read as far as it goes."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from engine.errors import TraceError
from engine.trace.file import FRAME_BYTES, read_trace, write_trace
from tests.core.driver import header, record_crowd


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.zst"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    trace = record_crowd(tmp_path / name)
    write_trace(tmp_path / f"copy-{name}", trace.header, trace.events)
    again = read_trace(tmp_path / f"copy-{name}")
    assert again == trace
    assert [event.seq for event in trace.events] == list(range(1, len(trace.events) + 1))
    assert all(a.ts <= b.ts for a, b in zip(trace.events, trace.events[1:], strict=False))


def test_a_compressed_trace_is_made_of_independent_frames(tmp_path: Path) -> None:
    whole = record_crowd(tmp_path / "run.jsonl.zst", num_requests=300)
    data = (tmp_path / "run.jsonl.zst").read_bytes()
    assert sum(len(repr(event)) for event in whole.events) > 2 * FRAME_BYTES
    assert data.count(b"\x28\xb5\x2f\xfd") > 1
    (tmp_path / "cut.jsonl.zst").write_bytes(data[: len(data) - 100])
    cut = read_trace(tmp_path / "cut.jsonl.zst")
    assert cut.truncated is not None and "frame" in cut.truncated
    assert 0 < len(cut.events) < len(whole.events)
    assert cut.events == whole.events[: len(cut.events)]


def test_a_cut_file_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    whole = record_crowd(path)
    path.write_bytes(path.read_bytes()[:-5])
    cut = read_trace(path)
    assert cut.events == whole.events[:-1]
    assert cut.truncated == (
        f"run.jsonl was cut short: it ends in the middle of line {len(whole.events) + 1}; "
        f"the {len(whole.events) - 1} events before it are whole."
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not an Orrery trace: it is empty"),
        (b"hello\n", "is not an Orrery trace: its first line is no trace header"),
        (b'{"type":"header"}\n', "is not an Orrery trace: its first line is no trace header"),
        (b'{"type":"header","schema_version":99}\n', "has trace version 99; this Orrery reads version 1"),
        (b'{"type":"header","schema_version":1}\n', "has a damaged trace header"),
        (b"\x28\xb5\x2f\xfdxxxx", "is not an Orrery trace: it is empty"),
        (b"\xff\xfe\x00\n", "is not an Orrery trace"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=says) as error:
        read_trace(path)
    assert str(error.value).startswith("odd.jsonl")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b'"seq":5,', b'"seq":4,', "seq 4 does not follow 4"),
        (b'"type":"step.started"', b'"type":"step.begun"', "not a trace event .*step.begun"),
        (b'"token_budget":16', b'"token_budget":"x"', "not a trace event .*token_budget"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, old: bytes, new: bytes, says: str) -> None:
    path = tmp_path / "run.jsonl"
    record_crowd(path)
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    with pytest.raises(TraceError, match=f"run.jsonl, line \\d+: .*{says}"):
        read_trace(path)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot be read: No such file"):
        read_trace(tmp_path / "nowhere.jsonl")
    with pytest.raises(TraceError, match=r"cannot be read: Is a directory"):
        read_trace(tmp_path)
    blocked = tmp_path / "file"
    blocked.write_text("")
    blocked.chmod(stat.S_IRUSR)
    with pytest.raises(TraceError, match="cannot be written"):
        write_trace(blocked / "trace.jsonl", header(), [])
