"""The recorder: stamps events with their number and time and writes them. It owns the clock; nobody else reads one."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from engine.config import TraceLevel
from engine.errors import TraceError
from engine.trace.events import Event, Header, TokenPieces
from engine.trace.file import TraceWriter

_RANK = {"off": 0, "control": 1, "forward": 2, "full": 3}
#: A crash may cost a compressed trace about this much of its end.
_LONGEST_WAIT_NS = 1_000_000_000


class EventSink(Protocol):
    """Where events go: a recorder, or the list that a replay compares with."""

    step: int
    """The engine step that the next events belong to; whoever works on a step sets it first."""

    def emit(self, event: Event) -> None:
        """Take one event. The sink fills in its common fields."""


class EventListener(Protocol):
    """Hears the events of a run while they happen."""

    def feed(self, event: Event) -> None:
        """Take one stamped event. Its lists may be the engine's own and change afterwards."""


class _EventFile:
    """The trace file: writes down what it hears."""

    def __init__(self, writer: TraceWriter, header: Header) -> None:
        self.writer = writer
        self._encoder = msgspec.json.Encoder()
        writer.write_line(self._encoder.encode(header))
        writer.flush()

    def feed(self, event: Event) -> None:
        self.writer.write_line(self._encoder.encode(event))


class _Tape:
    """Behind all recorders of a process: numbers and times their events and passes them on, one at a time."""

    def __init__(
        self,
        file: _EventFile | None,
        listener: EventListener | None,
        spell: Callable[[int], bytes] | None = None,
        engine: int = 0,
        rank: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._file = file
        self._spell = spell
        self._shown: set[int] = set()
        self._listeners: list[EventListener] = [each for each in (file, listener) if each is not None]
        self._engine, self._rank = engine, rank
        self._seq = 0
        self._lock = threading.Lock()
        self._clock = clock
        self._start = clock()
        self._flushed = time.monotonic_ns()

    def write(self, event: Event, step: int) -> None:
        with self._lock:
            self._seq += 1
            event.seq = self._seq
            event.ts = self._clock() - self._start
            event.step = step
            event.engine, event.rank = self._engine, self._rank
            for listener in self._listeners:
                listener.feed(event)

    def show_tokens(self, token_ids: Iterable[int], step: int) -> None:
        if self._spell is None:
            return
        with self._lock:
            new = [token_id for token_id in dict.fromkeys(token_ids) if token_id not in self._shown]
            self._shown.update(new)
        if new:
            self.write(TokenPieces(token_ids=new, pieces=[self._spell(token_id) for token_id in new]), step)

    def flush(self) -> None:
        if self._file is not None:
            now = time.monotonic_ns()
            waited = now - self._flushed >= _LONGEST_WAIT_NS
            if waited:
                self._flushed = now
            with self._lock, _run_goes_on():
                self._file.writer.flush(at_once=waited)

    def close(self) -> None:
        if self._file is not None:
            with self._lock, _run_goes_on():
                self._file.writer.close()


@contextmanager
def _run_goes_on() -> Iterator[None]:
    """Warn of a trace file that can no longer be written: the outputs of the step at hand must not be lost with it."""
    try:
        yield
    except TraceError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)


class Recorder:
    """Writes events to the trace file of its process, tells them to a listener, or both.

    An event is encoded the moment it is emitted, so its lists may be the engine's own and change afterwards.
    """

    def __init__(self, tape: _Tape, level: TraceLevel) -> None:
        self.level = level
        self.step = 0
        self._tape = tape

    @classmethod
    def to_file(
        cls,
        path: str | Path,
        header: Header,
        listener: EventListener | None = None,
        spell: Callable[[int], bytes] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> Recorder:
        """Record into a new file; a name that ends in `.zst` is compressed.

        Args:
            path: the file.
            header: its first line.
            listener: hears the same events.
            spell: the bytes of a token, for `show_tokens`.
            clock: nanoseconds from any point in time; the simulator has one of its own.

        Raises:
            TraceError: the file cannot be created, or another engine is writing it.
        """
        file = _EventFile(TraceWriter(path), header)
        return cls(_Tape(file, listener, spell, header.engine, header.rank, clock), header.level)

    @classmethod
    def to_listener(cls, listener: EventListener, spell: Callable[[int], bytes] | None = None) -> Recorder:
        """Write nothing down; a listener hears the events of level control."""
        return cls(_Tape(None, listener, spell), "control")

    def another(self) -> Recorder:
        """A recorder onto the same tape, with a step of its own: for a thread that works on another one than this."""
        return Recorder(self._tape, self.level)

    def records(self, level: TraceLevel) -> bool:
        """Whether events of this level are wanted."""
        return _RANK[self.level] >= _RANK[level]

    def emit(self, event: Event) -> None:
        """Stamp an event and pass it on."""
        self._tape.write(event, self.step)

    def show_tokens(self, token_ids: Iterable[int]) -> None:
        """Emit the bytes of those of these tokens that no event has shown yet."""
        self._tape.show_tokens(token_ids, self.step)

    def flush(self) -> None:
        """Hand what was written to the operating system, so that a crash loses nothing of the steps before.

        A compressed file may keep the last second back. If the file cannot be written, one warning says so and the
        rest of the run goes unrecorded.
        """
        self._tape.flush()

    def close(self) -> None:
        """Finish the file. Emitting afterwards is an error."""
        self._tape.close()
