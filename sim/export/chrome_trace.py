"""Chrome's trace format, which Perfetto and chrome://tracing read: JSON, written one event after the other.

Points in time are microseconds. Slices of one track must not overlap, so that overlapping ones are spread over lanes;
what does overlap by its nature, as requests do, is asynchronous: matched by category and id, on no track.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import IO, Any, Self

import msgspec

_NS_PER_US = 1000


class ChromeTrace:
    """A file being written; `with` closes its brackets.

    Args:
        file: where it goes.
        process: number of the process that everything belongs to.
        about: facts on the whole, shown by the viewers beside it.
    """

    def __init__(self, file: IO[bytes], process: int, about: Mapping[str, Any]) -> None:
        self._file = file
        self._process = process
        self._encode = msgspec.json.Encoder().encode
        self._file.write(b'{"displayTimeUnit":"ms","otherData":' + self._encode(about) + b',"traceEvents":[')
        self._separator = b"\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.write(b"\n]}\n")

    def name_process(self, name: str) -> None:
        self._write("M", "process_name", 0, tid=0, args={"name": name})

    def name_track(self, track: int, name: str) -> None:
        """Name a track; tracks stand in the order of their numbers."""
        self._write("M", "thread_name", 0, tid=track, args={"name": name})
        self._write("M", "thread_sort_index", 0, tid=track, args={"sort_index": track})

    def slice(self, track: int, name: str, start_ns: int, end_ns: int, args: Mapping[str, Any]) -> None:
        """Something that took a while; on its track there is nothing else meanwhile, but what is nested in it."""
        self._write("X", name, start_ns, dur=(end_ns - start_ns) / _NS_PER_US, tid=track, cat="step", args=args)

    def begin(self, id_: int, name: str, time_ns: int, args: Mapping[str, Any]) -> None:
        """Begin something asynchronous; within the same id the next one begun is nested."""
        self._write("b", name, time_ns, tid=0, cat="request", id=id_, args=args)

    def instant(self, id_: int, name: str, time_ns: int, args: Mapping[str, Any]) -> None:
        """Mark a moment of something asynchronous."""
        self._write("n", name, time_ns, tid=0, cat="request", id=id_, args=args)

    def end(self, id_: int, name: str, time_ns: int, args: Mapping[str, Any]) -> None:
        """End what was begun last under this id."""
        self._write("e", name, time_ns, tid=0, cat="request", id=id_, args=args)

    def counter(self, name: str, time_ns: int, values: Mapping[str, float]) -> None:
        """Values from now on."""
        self._write("C", name, time_ns, tid=0, args=values)

    def flow(self, phase: str, id_: int, name: str, track: int, time_ns: int) -> None:
        """One end of an arrow: `s` its start, `t` on the way, `f` its end, each within a slice of the track."""
        bound: dict[str, Any] = {"bp": "e"} if phase == "f" else {}
        self._write(phase, name, time_ns, tid=track, cat="flow", id=id_, **bound)

    def _write(self, phase: str, name: str, time_ns: int, **rest: Any) -> None:
        event = {"ph": phase, "name": name, "ts": time_ns / _NS_PER_US, "pid": self._process, **rest}
        self._file.write(self._separator + self._encode(event))
        self._separator = b",\n"


class Lanes:
    """Tracks side by side for slices that may overlap.

    Args:
        trace: where the tracks are named.
        first: number of the first track.
        name: of all of them.
    """

    def __init__(self, trace: ChromeTrace, first: int, name: str) -> None:
        self._trace = trace
        self._first = first
        self._name = name
        self._ends: list[int] = []

    def lane_for(self, start_ns: int, end_ns: int) -> int:
        """The first track that is free; slices are asked for in the order of their starts."""
        lane = next((lane for lane, end in enumerate(self._ends) if end <= start_ns), len(self._ends))
        if lane == len(self._ends):
            self._ends.append(0)
            self._trace.name_track(self._first + lane, self._name if lane == 0 else f"{self._name}, in flight as well")
        self._ends[lane] = end_ns
        return self._first + lane
