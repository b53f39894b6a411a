"""Trace files: JSON Lines, plain (`.jsonl`) or in independent zstandard frames (`.jsonl.zst`).

The first line is the header, every other line one event. A frame holds whole lines, at most 1 MiB of them, so a file
cut off anywhere can be read up to its last whole line, or to where its last frame can be decompressed.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
import zstandard

from engine.errors import TraceError
from engine.trace.events import Event, EventClass, Header
from engine.trace.open_file import TraceFile, open_trace

try:
    import fcntl
except ImportError:  # not on every operating system: there, two writers are not kept apart
    fcntl = None  # type: ignore[assignment]

FRAME_BYTES = 1 << 20
#: Fewer bytes than this are not worth a frame of their own, unless they have waited long.
SMALL_FRAME_BYTES = 1 << 16
#: How a file system says that it has no locks: there, as without fcntl, two writers are not kept apart.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
_SUFFIX = ".zst"


class AnyTrace(Protocol):
    """A trace, wherever it is: in memory, or in its file and decoded event by event (`engine.trace.open_file`)."""

    @property
    def header(self) -> Header:
        """Its first line."""

    @property
    def events(self) -> Sequence[Event]:
        """Its events in order."""

    @property
    def truncated(self) -> str | None:
        """If the file was cut short: where, in one sentence."""

    @property
    def types(self) -> frozenset[type[Event]]:
        """Types of event that occur in it."""


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

    @property
    def types(self) -> frozenset[type[Event]]:
        """Types of event that occur in it."""
        return frozenset(map(type, self.events))


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


def read_trace(path: str | Path) -> Trace:
    """Read a whole trace file.

    A file cut short by a crash is read up to its last whole line; `Trace.truncated` then says so.

    Raises:
        TraceError: no such file, not a trace, of an unknown version, or damaged before its end.
    """
    return _in_memory(open_trace(path))


def parse_trace(data: bytes, name: str) -> Trace:
    """Read a trace from the bytes of a file; `name` stands in error messages. Raises as `read_trace`."""
    return _in_memory(TraceFile(io.BytesIO(data), name))


def _in_memory(trace: TraceFile) -> Trace:
    with uncollected():
        return Trace(trace.header, list(trace.events), trace.truncated)


@contextmanager
def uncollected() -> Iterator[None]:
    """Spare the garbage collector looking at data that only grows and has no cycles: that can take half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


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
