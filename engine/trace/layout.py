"""The layout of a trace file: which of its chunks holds which events. One pass finds it, decoding next to nothing.

The pass reads type, number and step of every event and leaves the rest unread; so what is found wrong here is a line
that is no event at all, and what is wrong within an event is found when it is decoded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import pairwise, starmap

import msgspec

from engine.errors import TraceError
from engine.trace.chunks import Chunk, ChunkedFile
from engine.trace.events import EVENT_TYPES, SCHEMA_VERSION, AnyEvent, Event, Header, tag_of

_HEADER_START = b'{"type":"header",'
_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(AnyEvent)


class _Stamp(msgspec.Struct, gc=False):
    """What every event begins with."""

    type: str
    seq: int


_STAMPS = msgspec.json.Decoder(_Stamp)


class Layout(msgspec.Struct, frozen=True):
    """Where the events of a file are. The three lists have one entry per chunk."""

    offsets: list[int]
    """Where a chunk begins, in bytes."""
    sizes: list[int]
    """Bytes that it takes."""
    firsts: list[int]
    """Position of its first event in the trace, from 0."""
    num_events: int
    tags: list[str]
    """The types of event that occur, sorted."""
    truncated: str | None
    """If the file was cut short: where, in one sentence."""


def read_layout(
    file: ChunkedFile, name: str, progress: Callable[[int], object] = lambda num_bytes: None
) -> tuple[Header, Layout]:
    """Look a trace file through.

    Args:
        file: the file.
        name: what it is called in messages.
        progress: is told how many bytes of the file have been read.

    Raises:
        TraceError: not a trace, of an unknown version, or damaged before its end.
    """
    header: Header | None = None
    offsets: list[int] = []
    sizes: list[int] = []
    firsts: list[int] = []
    tags: set[str] = set()
    num_events = last_seq = 0
    for chunk in file.chunks():
        text = chunk.text
        if header is None:
            header, text = split_header(chunk, name)
        offsets.append(chunk.offset)
        sizes.append(chunk.size)
        firsts.append(num_events)
        stamps = _stamps(text, name, num_events)
        seqs = [last_seq, *(stamp.seq for stamp in stamps)]
        if not all(starmap(operator.lt, pairwise(seqs))):
            raise _out_of_order(seqs, name, num_events)
        tags.update(stamp.type for stamp in stamps)
        num_events, last_seq = num_events + len(stamps), seqs[-1]
        progress(chunk.offset + chunk.size)
    truncated = file.damage
    if file.rest and truncated is None:
        truncated = f"it ends in the middle of line {num_events + 1 + (header is not None)}"
    if header is None:
        raise _no_header(file.rest, name, truncated)
    note = f"{name} was cut short: {truncated}; the {num_events} events before it are whole." if truncated else None
    return header, Layout(offsets, sizes, firsts, num_events, sorted(tags), note)


def decode_events(text: bytes, name: str, first: int) -> list[Event]:
    """The events of whole lines.

    Args:
        text: the lines; the header is not among them.
        name: what the file is called in messages.
        first: position of the first of them in the trace.

    Raises:
        TraceError: a line is no event; it is named by its number in the file.
    """
    try:
        events = _DECODER.decode_lines(text)
        if len(events) == text.count(b"\n"):
            return events
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        pass  # Which line it was is found by reading one after another.
    return [_decode(line, name, number) for number, line in enumerate(text.split(b"\n")[:-1], first + 2)]


def split_header(chunk: Chunk, name: str) -> tuple[Header, bytes]:
    """The header in the first line of a file's first chunk, and the lines behind it.

    Raises:
        TraceError: it is no header of a version that can be read.
    """
    line, _, rest = chunk.text.partition(b"\n")
    return _decode_header(line, name), rest


def _stamps(text: bytes, name: str, first: int) -> list[_Stamp]:
    try:
        stamps = _STAMPS.decode_lines(text)
        if len(stamps) == text.count(b"\n") and EVENT_TYPES.keys() >= {stamp.type for stamp in stamps}:
            return stamps
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        pass  # Decoding whole events says which line it was, and why.
    return [_Stamp(tag_of(event), event.seq) for event in decode_events(text, name, first)]


def _decode(line: bytes, name: str, number: int) -> Event:
    try:
        return _DECODER.decode(line)
    except RecursionError as error:
        raise TraceError(f"{name}, line {number}: not a trace event (too deeply nested).") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TraceError(f"{name}, line {number}: not a trace event ({error}).") from error


def _out_of_order(seqs: list[int], name: str, first: int) -> TraceError:
    index, (last, seq) = next((index, pair) for index, pair in enumerate(pairwise(seqs)) if pair[1] <= pair[0])
    return TraceError(
        f"{name}, line {first + index + 2}: seq {seq} does not follow {last}; the numbers of a trace strictly increase."
    )


def _no_header(rest: bytes, name: str, truncated: str | None) -> TraceError:
    if rest and not rest.startswith(_HEADER_START[: len(rest)]):
        return TraceError(f"{name} is not an Orrery trace: its first line is no trace header.")
    if truncated:
        return TraceError(f"{name} was cut short: {truncated}, and nothing before it can be read.")
    return TraceError(f"{name} is not an Orrery trace: it is empty.")


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
