"""`TraceFile`: a trace that stays in its file; events are decoded where somebody looks at them."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, overload

from engine.errors import TraceError
from engine.trace.chunks import Chunk, ChunkedFile
from engine.trace.events import EVENT_TYPES, Event
from engine.trace.layout import Layout, decode_events, read_layout, split_header

#: Chunks whose events are kept, so that neighbouring steps need not be decoded again.
_KEPT_CHUNKS = 8


class TraceFile:
    """A trace in a file; what `Trace` is in memory.

    Args:
        file: the file; it stays open for as long as this lives.
        name: what it is called in messages.
        layout: where its events are, from an index; None: the file is looked through.
        progress: is told how many bytes have been looked through.

    Raises:
        TraceError: not a trace, of an unknown version, or damaged before its end.
    """

    def __init__(
        self,
        file: BinaryIO,
        name: str,
        layout: Layout | None = None,
        progress: Callable[[int], object] = lambda num_bytes: None,
    ) -> None:
        chunked = ChunkedFile(file)
        if layout is None:
            self.header, layout = read_layout(chunked, name, progress)
        else:
            first = Chunk(0, layout.sizes[0], chunked.text_of(0, layout.sizes[0]))
            self.header, _ = split_header(first, name)
        self.layout = layout
        self.events: Sequence[Event] = FileEvents(chunked, name, layout)
        self.truncated = layout.truncated
        self.types = frozenset(EVENT_TYPES[tag] for tag in layout.tags)
        """Types of event that occur in it."""


class FileEvents(Sequence[Event]):
    """The events of a file in order. Going through all of them keeps none; several threads may look at once."""

    def __init__(self, file: ChunkedFile, name: str, layout: Layout) -> None:
        self._file = file
        self._name = name
        self._layout = layout
        self._kept: OrderedDict[int, list[Event]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._layout.num_events

    def __iter__(self) -> Iterator[Event]:
        for number in range(len(self._layout.offsets)):
            yield from self._decode(number)

    @overload
    def __getitem__(self, place: int) -> Event: ...

    @overload
    def __getitem__(self, place: slice) -> list[Event]: ...

    def __getitem__(self, place: int | slice) -> Event | list[Event]:
        if isinstance(place, slice):
            start, stop, stride = place.indices(len(self))
            if stride != 1:
                return [self[position] for position in range(start, stop, stride)]
            return self._between(start, stop)
        position = place + len(self) if place < 0 else place
        if not 0 <= position < len(self):
            raise IndexError(place)
        number = self._chunk_of(position)
        return self._chunk(number)[position - self._layout.firsts[number]]

    def _between(self, start: int, stop: int) -> list[Event]:
        events: list[Event] = []
        while start < stop:
            number = self._chunk_of(start)
            first = self._layout.firsts[number]
            found = self._chunk(number)[start - first : stop - first]
            events += found
            start += len(found)
        return events

    def _chunk_of(self, position: int) -> int:
        return bisect_right(self._layout.firsts, position) - 1

    def _chunk(self, number: int) -> list[Event]:
        with self._lock:
            events = self._kept.get(number)
            if events is not None:
                self._kept.move_to_end(number)
                return events
        events = self._decode(number)
        with self._lock:
            self._kept[number] = events
            if len(self._kept) > _KEPT_CHUNKS:
                self._kept.popitem(last=False)
        return events

    def _decode(self, number: int) -> list[Event]:
        layout = self._layout
        with self._lock:
            text = self._file.text_of(layout.offsets[number], layout.sizes[number])
        if number == 0:
            text = text[text.find(b"\n") + 1 :]
        return decode_events(text, self._name, layout.firsts[number])


def open_trace(
    path: str | Path, layout: Layout | None = None, progress: Callable[[int], object] = lambda num_bytes: None
) -> TraceFile:
    """Open a trace file without reading it into memory; arguments and errors are those of `TraceFile`.

    Raises:
        TraceError: also if there is no such file.
    """
    path = Path(path)
    try:
        return TraceFile(path.open("rb"), path.name, layout, progress)
    except OSError as error:
        raise TraceError(f"The trace file {path} cannot be read: {error.strerror}.") from error
