"""Trace files: JSON Lines, plain (`.jsonl`) or in independent zstandard frames (`.jsonl.zst`).

The first line is the header, every other line one event. A frame holds whole lines, at most 1 MiB of them, so a file
cut off anywhere can be read up to its last whole line, or to where its last frame can be decompressed.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zstandard

from engine.errors import TraceError
from engine.trace.events import SCHEMA_VERSION, AnyEvent, Event, EventClass, Header

try:
    import fcntl
except ImportError:  # not on every operating system: there, two writers are not kept apart
    fcntl = None  # type: ignore[assignment]

FRAME_BYTES = 1 << 20
#: Fewer bytes than this are not worth a frame of their own, unless they have waited long.
SMALL_FRAME_BYTES = 1 << 16
#: How a file system says that it has no locks: there, as without fcntl, two writers are not kept apart.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SUFFIX = ".zst"
_HEADER_START = b'{"type":"header",'


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
    """Writes whole lines to a trace file, which is its own as long as it is open.

    When a write fails (the disk is full), what was written of it is taken back, so that the file ends in a whole line;
    the next `flush` or `close` says so, once, and nothing is written any more.

    Raises:
        TraceError: the file cannot be created, or another engine is writing it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: what failed must not be tried again behind our back. Emptied only once it is locked.
            self._file = io.FileIO(os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o666), "w")
        except OSError as error:
            raise TraceError(f"The trace file {self.path} cannot be written: {error.strerror}.") from error
        self._is_regular = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)
        if self._is_regular:
            self._claim()
        self._compressor = zstandard.ZstdCompressor() if self.path.suffix == _SUFFIX else None
        self._pending = bytearray()
        self._num_written = 0
        self._failure: OSError | None = None
        self._has_failed = False

    def write_line(self, line: bytes) -> None:
        """Append one line; `line` has no newline of its own."""
        if self._has_failed:
            return
        if self._compressor and len(self._pending) + len(line) >= FRAME_BYTES:
            self._write_pending()
        self._pending += line
        self._pending += b"\n"

    def flush(self, *, at_once: bool = True) -> None:
        """Write out whole lines.

        Args:
            at_once: whether a compressed file writes a frame however small: tiny ones hardly compress.

        Raises:
            TraceError: a write failed; said once.
        """
        if at_once or not self._compressor or len(self._pending) >= SMALL_FRAME_BYTES:
            self._write_pending()
        self._report()

    def close(self) -> None:
        """Write out everything and close the file. A second call does nothing.

        Raises:
            TraceError: a write failed; said once.
        """
        if not self._file.closed:
            self._write_pending()
            self._file.close()
            self._report()

    def _claim(self) -> None:
        try:
            if fcntl is not None:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise TraceError(
                f"The trace file {self.path} is being written by another engine: each needs a file of its own."
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        self._file.truncate(0)

    def _write_pending(self) -> None:
        if not self._pending:
            return
        lines = bytes(self._pending)
        self._pending.clear()
        left = memoryview(self._compressor.compress(lines) if self._compressor else lines)
        num_bytes = len(left)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._failure, self._has_failed = error, True
            if self._is_regular:
                self._file.truncate(self._num_written)
            return
        self._num_written += num_bytes

    def _report(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise TraceError(
                f"The trace file {self.path} ends here, as it cannot be written any further: {failure.strerror}."
            ) from failure


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
            raise self._no_event(str(error)) from error
        except RecursionError as error:
            raise self._no_event("too deeply nested") from error
        if event.seq <= self._last_seq:
            raise TraceError(
                f"{self.name}, line {self._line_number}: seq {event.seq} does not follow {self._last_seq}; "
                "the numbers of a trace strictly increase."
            )
        self._last_seq = event.seq
        return event

    def _no_event(self, why: str) -> TraceError:
        return TraceError(f"{self.name}, line {self._line_number}: not a trace event ({why}).")


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
            truncated = truncated or f"it ends in the middle of line {reader._line_number + 1}"
            if reader.header is None and not line.startswith(_HEADER_START):
                reader.read(line)
            break
        event = reader.read(line)
        if event is not None:
            events.append(event)
    if reader.header is None:
        if truncated:
            raise TraceError(f"{name} was cut short: {truncated}, and nothing before it can be read.")
        raise TraceError(f"{name} is not an Orrery trace: it is empty.")
    note = f"{name} was cut short: {truncated}; the {len(events)} events before it are whole." if truncated else None
    return Trace(reader.header, events, note)


def write_trace(path: str | Path, header: Header, events: list[Event]) -> None:
    """Write events as they stand, numbers and times included.

    Raises:
        TraceError: the file cannot be created or written, or an engine is writing it.
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
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
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
        where = str(error).replace(". - at", " - at")  # the sentence of a range check, with the place behind it
        raise TraceError(f"{name} has a damaged trace header ({where}).") from error


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
    """All that can be decompressed, and what is wrong with the end of the file if something is."""
    out = io.BytesIO()
    while data:
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        try:
            frame = decompressor.decompress(data)
        except zstandard.ZstdError:
            return out.getvalue(), "its last compressed frame is damaged"
        out.write(frame)
        if not decompressor.eof:
            return out.getvalue(), "its last compressed frame is incomplete"
        data = decompressor.unused_data
    return out.getvalue(), None
