"""Traces that name the blocks of their prompts: two prompts begin alike for as long as their `hash_ids` do.

| format | times are | a block is |
| --- | --- | --- |
| `mooncake` | milliseconds | 512 tokens |
| `timed-trace`, as vLLM's benchmarks read the same fields unless told otherwise | seconds | 16 tokens |
| `qwen-bailian`, with `chat_id` and `parent_chat_id` | seconds | 16 tokens |

::

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, …]}

Every block has an id, the last one also if it is not full; where that id is missing, the prompt's end is taken to be
like no other's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from engine.errors import WorkloadError
from engine.workload.prompt_shape import PromptShape, Span
from engine.workload.reading import FileTime, Since, cannot_be_sent, shaped_lines
from engine.workload.request import WorkloadRequest

_Count = Annotated[int, Meta(ge=0)]
#: The parent of a conversation's first request.
_NO_PARENT = -1


class Convention(NamedTuple):
    """What the numbers of a file mean."""

    ns_per_tick: float
    block_tokens: int


MOONCAKE = Convention(ns_per_tick=1e6, block_tokens=512)
TIMED_TRACE = Convention(ns_per_tick=1e9, block_tokens=16)


class _Line(msgspec.Struct):
    timestamp: FileTime
    input_length: _Count
    output_length: _Count
    hash_ids: list[_Count] | None = None


class _ChatLine(_Line, kw_only=True):
    chat_id: int
    parent_chat_id: int


_SomeLine = TypeVar("_SomeLine", bound=_Line)


def read_hash_ids(path: Path, left_out: Counter[str], convention: Convention) -> Iterator[WorkloadRequest]:
    """The requests of a Mooncake or timed trace, one by one.

    Args:
        path: the JSON Lines file.
        left_out: counts those that cannot be sent, by their reason.
        convention: what its numbers mean.

    Raises:
        WorkloadError: the file is not of this form; says the line.
        OSError: it cannot be read.
    """
    for _, request in _requests(path, left_out, convention, _Line):
        yield request


def read_qwen_bailian(path: Path, left_out: Counter[str]) -> Iterator[WorkloadRequest]:
    """The requests of a Qwen-Bailian trace, one by one; a session is named after its first `chat_id`.

    Raises:
        WorkloadError: the file is not of this form; says the line.
        OSError: it cannot be read.
    """
    first_of: dict[int, int] = {}
    for line, request in _requests(path, left_out, TIMED_TRACE, _ChatLine):
        parent = line.parent_chat_id
        # The parent of a request near the beginning may lie before the file.
        first = line.chat_id if parent == _NO_PARENT else first_of.get(parent, parent)
        first_of[line.chat_id] = first
        yield request._replace(session=str(first))


def _requests(
    path: Path, left_out: Counter[str], convention: Convention, shape: type[_SomeLine]
) -> Iterator[tuple[_SomeLine, WorkloadRequest]]:
    since = Since(path)
    for number, (place, line) in enumerate(shaped_lines(path, shape)):
        arrival_ns = since.first(round(line.timestamp * convention.ns_per_tick), place)
        if not cannot_be_sent(line.input_length, line.output_length, left_out):
            spans = _spans(line, convention.block_tokens, number)
            if spans is None:
                raise WorkloadError(
                    f"{path}, line {place}: {len(line.hash_ids or ())} hash_ids of {convention.block_tokens} tokens do "
                    f"not make a prompt of {line.input_length}."
                )
            yield line, WorkloadRequest(PromptShape(spans), line.output_length, arrival_ns)


def _spans(line: _Line, block_tokens: int, number: int) -> tuple[Span, ...] | None:
    """The parts of a prompt; None if there are not as many ids as it has blocks."""
    if not line.hash_ids:
        return PromptShape.unlike_others(line.input_length, number).spans
    num_full, rest = divmod(line.input_length, block_tokens)
    spans = [Span(block, block_tokens) for block in line.hash_ids[:num_full]]
    if len(line.hash_ids) == num_full + bool(rest):
        last: tuple[Span, ...] = (Span(line.hash_ids[-1], rest),) if rest else ()
    elif len(line.hash_ids) == num_full:
        last = PromptShape.unlike_others(rest, number).spans
    else:
        return None
    return (*spans, *last)
