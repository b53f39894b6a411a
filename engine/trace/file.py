"""Trace files: JSON Lines, plain (`.jsonl`) or in independent zstandard frames (`.jsonl.zst`).

The first line is the header, every other line one event. A frame holds whole lines, at most 1 MiB of them, so a file
cut off anywhere can be read up to its last whole line, or its last whole frame.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec
import zstandard

from engine.errors import TraceError
from engine.trace.events import SCHEMA_VERSION, AnyEvent, Event, EventClass, Header

FRAME_BYTES = 1 << 20
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SUFFIX = ".zst"


@dataclass
class Trace:
    """A trace in memory."""

    header: Header
    events: list[Event] = field(default_factory=list)
    truncated: str | None = None
    """If the file was cut short: where, in one sentence."""

    def of_class(self, kind: EventClass) -> list[Event]:
        """The events of one class, in order."""
        return [event for event in self.events if event.kind is kind]


class TraceWriter:
    """Writes whole lines to a trace file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self.path.open("wb")
        except OSError as error:
            raise TraceError(f"The trace file {self.path} cannot be written: {error.strerror}.") from error
        self._compressor = zstandard.ZstdCompressor() if self.path.suffix == _SUFFIX else None
        self._frame = bytearray()

    def write_line(self, line: bytes) -> None:
        """Append one line; `line` has no newline of its own."""
        if self._compressor and len(self._frame) + len(line) >= FRAME_BYTES:
            self._write_frame()
        self._frame += line
        self._frame += b"\n"

    def flush(self) -> None:
        """Write out whole lines. A compressed file waits for a full frame: tiny ones would not compress."""
        if not self._compressor:
            self._write_frame()

    def close(self) -> None:
        """Write out everything and close the file. A second call does nothing."""
        if not self._file.closed:
            self._write_frame()
            self._file.close()

    def _write_frame(self) -> None:
        if self._frame:
            data = bytes(self._frame)
            self._file.write(self._compressor.compress(data) if self._compressor else data)
            self._file.flush()
            self._frame.clear()


class LineReader:
    """Turns lines into header and events, and says which line is wrong. Also follows a file that still grows."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.header: Header | None = None
        self._decoder = msgspec.json.Decoder(AnyEvent)
        self._line_number = 0
        self._last_seq = 0

    def read(self, line: bytes) -> Event | None:
        """Read the next line; None for the header.

        Raises:
            TraceError: the line is no event, or not the header where one is due, or out of order.
        """
        self._line_number += 1
        if self.header is None:
            self.header = _decode_header(line, self.name)
            return None
        try:
            event: Event = self._decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise TraceError(f"{self.name}, line {self._line_number}: not a trace event ({error}).") from error
        if event.seq <= self._last_seq:
            raise TraceError(
                f"{self.name}, line {self._line_number}: seq {event.seq} does not follow {self._last_seq}; "
                "the numbers of a trace strictly increase."
            )
        self._last_seq = event.seq
        return event


def read_trace(path: str | Path) -> Trace:
    """Read a whole trace file.

    A file cut short by a crash is read up to its last whole line; `Trace.truncated` then says so.

    Raises:
        TraceError: no such file, not a trace, of an unknown version, or damaged before its end.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(f"The trace file {path} cannot be read: {error.strerror}.") from error
    return parse_trace(data, path.name)


def parse_trace(data: bytes, name: str) -> Trace:
    """Read a trace from the bytes of a file; `name` stands in error messages. Raises as `read_trace`."""
    text, truncated = _decompress(data) if data.startswith(_ZSTD_MAGIC) else (data, None)
    reader = LineReader(name)
    events: list[Event] = []
    for line, whole in _lines(text):
        if not whole:
            truncated = f"it ends in the middle of line {reader._line_number + 1}"
            if reader.header is None:
                reader.read(line)
            break
        event = reader.read(line)
        if event is not None:
            events.append(event)
    if reader.header is None:
        raise TraceError(f"{name} is not an Orrery trace: it is empty.")
    note = f"{name} was cut short: {truncated}; the {len(events)} events before it are whole." if truncated else None
    return Trace(reader.header, events, note)


def write_trace(path: str | Path, header: Header, events: list[Event]) -> None:
    """Write events as they stand, numbers and times included.

    Raises:
        TraceError: the file cannot be created.
    """
    writer = TraceWriter(path)
    encoder = msgspec.json.Encoder()
    writer.write_line(encoder.encode(header))
    for event in events:
        writer.write_line(encoder.encode(event))
    writer.close()


def _decode_header(line: bytes, name: str) -> Header:
    try:
        seen = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        seen = None
    if not isinstance(seen, dict) or seen.get("type") != "header" or "schema_version" not in seen:
        raise TraceError(f"{name} is not an Orrery trace: its first line is no trace header.")
    if seen["schema_version"] != SCHEMA_VERSION:
        raise TraceError(
            f"{name} has trace version {seen['schema_version']}; this Orrery reads version {SCHEMA_VERSION}."
        )
    try:
        return msgspec.convert(seen, Header)
    except msgspec.MsgspecError as error:
        raise TraceError(f"{name} has a damaged trace header ({error}).") from error


def _lines(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """Every line, and whether it ends in a newline: only the last one may not."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        if end < 0:
            yield data[start:], False
            return
        yield data[start:end], True
        start = end + 1


def _decompress(data: bytes) -> tuple[bytes, str | None]:
    """All whole frames, and what is wrong with the end of the file if something is."""
    out = io.BytesIO()
    while data:
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        try:
            frame = decompressor.decompress(data)
        except zstandard.ZstdError:
            return out.getvalue(), "its last compressed frame is damaged"
        if not decompressor.eof:
            return out.getvalue(), "its last compressed frame is incomplete"
        out.write(frame)
        data = decompressor.unused_data
    return out.getvalue(), None
