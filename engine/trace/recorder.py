"""The recorder: stamps events with their number and time and writes them. It owns the clock; nobody else reads one."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Protocol

import msgspec

from engine.config import TraceLevel
from engine.trace.events import Event, Header
from engine.trace.file import TraceWriter

_RANK = {"off": 0, "control": 1, "forward": 2, "full": 3}


class EventSink(Protocol):
    """Where events go: a recorder, or the list that a replay compares with."""

    step: int
    """The engine step that the next events belong to; whoever works on a step sets it first."""

    def emit(self, event: Event) -> None:
        """Take one event. The sink fills in its common fields."""


class _Tape:
    """The one file behind all recorders of a process: numbers and writes their events, one at a time."""

    def __init__(self, writer: TraceWriter, header: Header) -> None:
        self.writer = writer
        self.level: TraceLevel = header.level
        self._engine, self._rank = header.engine, header.rank
        self._seq = 0
        self._encoder = msgspec.json.Encoder()
        self._lock = threading.Lock()
        self._start = time.monotonic_ns()
        writer.write_line(self._encoder.encode(header))
        writer.flush()

    def write(self, event: Event, step: int) -> None:
        with self._lock:
            self._seq += 1
            event.seq = self._seq
            event.ts = time.monotonic_ns() - self._start
            event.step = step
            event.engine, event.rank = self._engine, self._rank
            self.writer.write_line(self._encoder.encode(event))

    def flush(self) -> None:
        with self._lock:
            self.writer.flush()


class Recorder:
    """Writes events to the trace file of its process.

    An event is encoded the moment it is emitted, so its lists may be the engine's own and change afterwards.
    """

    def __init__(self, tape: _Tape) -> None:
        self.level = tape.level
        self.step = 0
        self._tape = tape

    @classmethod
    def to_file(cls, path: str | Path, header: Header) -> Recorder:
        """Record into a new file; a name that ends in `.zst` is compressed.

        Raises:
            TraceError: the file cannot be created.
        """
        return cls(_Tape(TraceWriter(path), header))

    def another(self) -> Recorder:
        """A recorder into the same file, with a step of its own: for a thread that works on another one than this."""
        return Recorder(self._tape)

    def records(self, level: TraceLevel) -> bool:
        """Whether events of this level are wanted."""
        return _RANK[self.level] >= _RANK[level]

    def emit(self, event: Event) -> None:
        """Stamp an event and write it."""
        self._tape.write(event, self.step)

    def flush(self) -> None:
        """Hand what was written to the operating system, so that a crash loses nothing of the steps before."""
        self._tape.flush()

    def close(self) -> None:
        """Finish the file. Emitting afterwards is an error."""
        self._tape.writer.close()
