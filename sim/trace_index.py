"""What one pass over a whole trace finds: where its steps are, its numbers, and who is concerned by which event.

Of a small trace the pass is made whenever it is opened. Of a large one its results are kept in an index file, together
with keyframes, so that the trace opens at once the next time.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

import engine.metrics
import engine.trace
import sim
from engine.cache_dir import cache_dir
from engine.trace.file import AnyTrace, read_trace, uncollected
from engine.trace.index import Fingerprint, Index, find_index, new_index
from engine.trace.layout import Layout
from engine.trace.open_file import TraceFile, open_trace
from sim.keyframes import KeyframeWriter, StoredKeyframes
from sim.spans import Span, SpanFinder
from sim.state import State, StateError
from sim.summary import Summariser, TraceFacts
from sim.touches import Touches

_Kept = TypeVar("_Kept")

#: A trace of fewer events is read into memory, which takes less than a second.
LARGE_TRACE_EVENTS = 50_000

#: Is told which share of the work is done, 0 to 1.
Progress = Callable[[float], object]

#: Share of the passes over a file that finding its layout takes.
_LAYOUT_SHARE = 0.1
_REPORTED_EVENTS = 1 << 14


class TraceIndex(Protocol):
    """What has been found."""

    @property
    def spans(self) -> dict[int, Span]:
        """By step, in order."""

    @property
    def facts(self) -> TraceFacts:
        """The trace in numbers."""

    @property
    def touches(self) -> Touches:
        """Which events concern a block or a request."""

    @property
    def keyframes(self) -> StoredKeyframes | None:
        """States on the way, if any were kept."""


class FreshIndex:
    """Takes the events of a trace one after another; says what it found."""

    keyframes = None

    def __init__(self, trace: AnyTrace) -> None:
        self.touches = Touches()
        self._spans = SpanFinder()
        self._summariser = Summariser(trace.header)

    @classmethod
    def of(cls, trace: AnyTrace) -> FreshIndex:
        """Make the pass over a whole trace.

        Raises:
            StateError: its steps are not numbered upwards.
        """
        index = cls(trace)
        for position, event in enumerate(trace.events):
            index.feed(position, event)
        return index

    def feed(self, position: int, event: Any) -> None:
        """Take the event at a position."""
        self._spans.feed(position, event)
        self._summariser.feed(event)
        self.touches.feed(position, event)

    @cached_property
    def spans(self) -> dict[int, Span]:
        """By step, in order."""
        return self._spans.spans()

    @cached_property
    def facts(self) -> TraceFacts:
        """The trace in numbers."""
        return self._summariser.facts()


class StoredIndex:
    """What an index file holds; each part is read when it is first asked for."""

    def __init__(self, index: Index) -> None:
        self._index = index

    @cached_property
    def layout(self) -> Layout:
        """Where the events of the file are."""
        return _decode(self._index, "layout", Layout)

    @cached_property
    def spans(self) -> dict[int, Span]:
        """By step, in order."""
        return _decode(self._index, "spans", dict[int, Span])

    @cached_property
    def facts(self) -> TraceFacts:
        """The trace in numbers."""
        facts = _decode(self._index, "facts", TraceFacts)
        for request, life in zip(facts.metrics.requests, facts.lives, strict=True):
            life.request = request
        return facts

    @cached_property
    def touches(self) -> Touches:
        """Which events concern a block or a request."""
        return _decode(self._index, "touches", Touches)

    @cached_property
    def keyframes(self) -> StoredKeyframes:
        """States on the way."""
        return StoredKeyframes(self._index)


def open_indexed(path: Path, progress: Progress = lambda share: None) -> tuple[AnyTrace, TraceIndex]:
    """Open a trace and what is known of it; of a large one an index file is used, or made for the next time.

    Raises:
        TraceError: no such file, not a trace, of an unknown version, or damaged before its end.
        StateError: its steps are not numbered upwards.
    """
    folder, fingerprint = cache_dir() / "indexes", Fingerprint.of(path, _maker())
    found = find_index(path, folder, fingerprint)
    if found is not None:
        stored = StoredIndex(found)
        return open_trace(path, stored.layout), stored
    trace = open_trace(path, progress=lambda read: progress(_LAYOUT_SHARE * read / max(1, fingerprint.size)))
    if len(trace.events) < LARGE_TRACE_EVENTS:
        small = read_trace(path)
        return small, FreshIndex.of(small)
    fresh = _make(trace, path, folder, fingerprint, progress)
    made = find_index(path, folder, fingerprint)
    return trace, fresh if made is None else StoredIndex(made)


def _make(trace: TraceFile, path: Path, folder: Path, fingerprint: Fingerprint, progress: Progress) -> FreshIndex:
    """The pass over a large trace; what it finds is written down where that can be done."""
    fresh = FreshIndex(trace)
    initial = State.initial(trace.header)
    state: State | None = initial
    with uncollected(), new_index(path, folder, fingerprint) as writer:
        keyframes = None if writer is None else KeyframeWriter(trace.header, writer)
        for position, event in enumerate(trace.events):
            fresh.feed(position, event)
            if state is not None and keyframes is not None:
                try:
                    state.apply(event)
                except StateError:
                    state = None  # there are no states behind it: whoever looks there is told why
                    continue
                if (position + 1) % keyframes.interval == 0:
                    keyframes.write(position + 1, state)
            if position % _REPORTED_EVENTS == 0:
                progress(_LAYOUT_SHARE + (1 - _LAYOUT_SHARE) * position / len(trace.events))
        if writer is not None and keyframes is not None:
            keyframes.finish(initial.pieces)
            writer.write("layout", _encode(trace.layout))
            writer.write("spans", _encode(fresh.spans))
            writer.write("facts", _encode(fresh.facts))
            writer.write("touches", _encode(fresh.touches))
    return fresh


def _maker() -> str:
    """Digest of the code whose results an index holds: other code makes an index of its own."""
    digest = hashlib.sha256()
    for package in (sim, engine.metrics, engine.trace):
        for source in sorted(Path(str(package.__file__)).parent.glob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def _encode(value: object) -> bytes:
    return msgspec.msgpack.encode(value, enc_hook=_as_bytes)


def _decode(index: Index, name: str, kind: type[_Kept]) -> _Kept:
    return msgspec.msgpack.decode(index.section(name), type=kind, dec_hook=_as_array)


def _as_bytes(value: object) -> bytes:
    """Arrays are written as their type code and their bytes."""
    if not isinstance(value, array):
        raise NotImplementedError(type(value))
    return value.typecode.encode() + value.tobytes()


def _as_array(_: type[Any], value: bytes) -> array[int]:
    numbers: array[int] = array(chr(value[0]))
    numbers.frombytes(value[1:])
    return numbers
