"""The recorder: stamps events with their number and time and writes them. It owns the clock; nobody else reads one."""

from __future__ import annotations

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


class Recorder:
    """Writes the events of one process to one trace file.

    An event is encoded the moment it is emitted, so its lists may be the engine's own and change afterwards.
    """

    def __init__(self, writer: TraceWriter, header: Header) -> None:
        self.level: TraceLevel = header.level
        self.step = 0
        self._seq = 0
        self._engine, self._rank = header.engine, header.rank
        self._writer = writer
        self._encoder = msgspec.json.Encoder()
        self._start = time.monotonic_ns()
        writer.write_line(self._encoder.encode(header))
        writer.flush()

    @classmethod
    def to_file(cls, path: str | Path, header: Header) -> Recorder:
        """Record into a new file; a name that ends in `.zst` is compressed.

        Raises:
            TraceError: the file cannot be created.
        """
        return cls(TraceWriter(path), header)

    def records(self, level: TraceLevel) -> bool:
        """Whether events of this level are wanted."""
        return _RANK[self.level] >= _RANK[level]

    def emit(self, event: Event) -> None:
        """Stamp an event and write it."""
        self._seq += 1
        event.seq = self._seq
        event.ts = time.monotonic_ns() - self._start
        event.step = self.step
        event.engine, event.rank = self._engine, self._rank
        self._writer.write_line(self._encoder.encode(event))

    def flush(self) -> None:
        """Hand what was written to the operating system, so that a crash loses nothing of the steps before."""
        self._writer.flush()

    def close(self) -> None:
        """Finish the file. Emitting afterwards is an error."""
        self._writer.close()
