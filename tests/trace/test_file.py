"""Trace files: what is written is read, what is damaged is named, what is cut short is read as far as it goes."""

from __future__ import annotations

import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from engine.errors import TraceError
from engine.trace.events import ScheduleCalled
from engine.trace.file import FRAME_BYTES, SMALL_FRAME_BYTES, TraceWriter, read_trace, write_trace
from engine.trace.recorder import Recorder
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
        (b"\x28\xb5\x2f\xfdxxxx", "was cut short: .*damaged, and nothing before it can be read"),
        (b"\x28\xb5\x2f\xfd", "was cut short: .*incomplete, and nothing before it can be read"),
        (b'{"type":"header","schema_ver', "was cut short: it ends in the middle of line 1, and nothing"),
        (b"[" * 100_000 + b"\n", "is not an Orrery trace"),
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
        (b'"token_budget":16', b'"other":' + b"[" * 100_000, "not a trace event .*too deeply nested"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, old: bytes, new: bytes, says: str) -> None:
    path = tmp_path / "run.jsonl"
    record_crowd(path)
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    with pytest.raises(TraceError, match=f"run.jsonl, line \\d+: .*{says}"):
        read_trace(path)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"none_hash": "zz"}, "none_hash must be hexadecimal"),
        ({"block_size": 0}, "block_size must be an integer >= 1"),
        ({"block_size": 10**9}, "block_size must be an integer <= 65536"),
        ({"num_gpu_blocks": 0}, "num_gpu_blocks must be an integer >= 1"),
        ({"num_gpu_blocks": 10**8}, "num_gpu_blocks must be an integer <= 16777216"),
        ({"num_gpu_blocks": 10**18}, "num_gpu_blocks must be an integer <= 16777216"),
        ({"groups": []}, "groups must hold at least one"),
    ],
)
def test_a_header_that_no_engine_writes_is_refused(tmp_path: Path, values: dict[str, Any], says: str) -> None:
    path = tmp_path / "run.jsonl"
    head = msgspec.json.decode(msgspec.json.encode(header()))
    head["kv_cache"].update(values)
    path.write_bytes(msgspec.json.encode(head) + b"\n")
    with pytest.raises(TraceError, match=f"run.jsonl has a damaged trace header .*{says}"):
        read_trace(path)


def test_the_header_of_a_compressed_trace_is_a_frame_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.zst"
    recorder = Recorder.to_file(path, header())
    assert read_trace(path).header == header()
    recorder.close()


def test_a_compressed_trace_is_written_while_it_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.zst"
    writer = TraceWriter(path)
    writer.write_line(msgspec.json.encode(header()))
    writer.flush(at_once=False)
    assert path.stat().st_size == 0, "too little for a frame"
    events = [ScheduleCalled(seq=seq) for seq in range(1, SMALL_FRAME_BYTES // 16)]
    for event in events:
        writer.write_line(msgspec.json.encode(event))
    writer.flush(at_once=False)
    assert read_trace(path).events == events
    writer.close()


def test_what_is_there_of_a_cut_frame_is_read(tmp_path: Path) -> None:
    whole = record_crowd(tmp_path / "run.jsonl", num_requests=100)
    data = zstandard.ZstdCompressor().compress((tmp_path / "run.jsonl").read_bytes())
    (tmp_path / "cut.jsonl.zst").write_bytes(data[: len(data) * 3 // 4])
    cut = read_trace(tmp_path / "cut.jsonl.zst")
    assert cut.truncated is not None and "its last compressed frame is incomplete" in cut.truncated
    assert cut.events == whole.events[: len(cut.events)] != []


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Writing beyond that many bytes of a file fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.zst"])
def test_a_full_disk_is_told_once_and_leaves_whole_lines(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    recorder = Recorder.to_file(path, header())
    for _ in range(10):
        recorder.emit(ScheduleCalled())
    recorder.close()
    enough = path.stat().st_size + 5
    recorder = Recorder.to_file(path, header())
    for _ in range(10):
        recorder.emit(ScheduleCalled())
    recorder.flush()
    with largest_file(enough), pytest.warns(RuntimeWarning, match=f"{name} ends here, .*: File too large") as told:
        for _ in range(20):
            for _ in range(400):
                recorder.emit(ScheduleCalled())
            recorder.flush()
    assert len(told) == 1
    recorder.emit(ScheduleCalled())
    recorder.close()
    left = read_trace(path)
    assert left.truncated is None
    assert [event.seq for event in left.events] == list(range(1, len(left.events) + 1))
    assert len(left.events) == (10 if name == "run.jsonl" else 0), "what was written before it was full"


def test_a_trace_that_cannot_be_written_to_its_end_is_an_error(tmp_path: Path) -> None:
    with largest_file(5000), pytest.raises(TraceError, match=r"run\.jsonl ends here"):
        write_trace(tmp_path / "run.jsonl", header(), [ScheduleCalled(seq=seq) for seq in range(1, 1000)])


def test_a_file_is_written_by_one_engine_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    first = Recorder.to_file(path, header())
    first.emit(ScheduleCalled())
    first.flush()
    with pytest.raises(TraceError, match="is being written by another engine"):
        Recorder.to_file(path, header())
    assert len(read_trace(path).events) == 1, "the second has not touched it"
    first.close()
    Recorder.to_file(path, header()).close()
    assert read_trace(path).events == []


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
