"""Azure's traces of LLM inference, 2023 and 2024, and of multimodal inference, 2025.

::

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:17:03.9799600,4808,10

The multimodal file has a column `NumImages` too, which is passed over: what an image costs beside its tokens is not in
the file. Prompts are taken to share nothing, since nothing says what they share.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from engine.errors import WorkloadError
from engine.workload.prompt_shape import PromptShape
from engine.workload.reading import Since, cannot_be_sent, shaped_rows
from engine.workload.request import WorkloadRequest

#: Up to nine fractional digits, which is more than `datetime` takes; UTC unless an offset says otherwise.
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([+-]\d\d:\d\d)?", re.ASCII)
_NS_PER_S = 1_000_000_000


class _Row(msgspec.Struct):
    time: str = msgspec.field(name="TIMESTAMP")
    num_prompt_tokens: Annotated[int, Meta(ge=0)] = msgspec.field(name="ContextTokens")
    num_output_tokens: Annotated[int, Meta(ge=0)] = msgspec.field(name="GeneratedTokens")


def read_azure(path: Path, left_out: Counter[str]) -> Iterator[WorkloadRequest]:
    """The requests of a file, one by one.

    Args:
        path: the CSV file.
        left_out: counts those that cannot be sent, by their reason.

    Raises:
        WorkloadError: the file is not of this form; says the line.
        OSError: it cannot be read.
    """
    since = Since(path)
    for number, (line, row) in enumerate(shaped_rows(path, _Row)):
        arrival_ns = since.first(_nanoseconds(row.time, path, line), line)
        if not cannot_be_sent(row.num_prompt_tokens, row.num_output_tokens, left_out):
            shape = PromptShape.unlike_others(row.num_prompt_tokens, number)
            yield WorkloadRequest(shape, row.num_output_tokens, arrival_ns)


def _nanoseconds(text: str, path: Path, line: int) -> int:
    """Nanoseconds since 1970."""
    match = _TIMESTAMP.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        whole, fraction, offset = match.groups()
        seconds = datetime.fromisoformat(whole + (offset or "+00:00")) - datetime(1970, 1, 1, tzinfo=UTC)
    except ValueError as error:
        raise WorkloadError(
            f"{path}, line {line}: its time must be written YYYY-MM-DD hh:mm:ss.fffffff, got {text!r}."
        ) from error
    return (seconds.days * 86_400 + seconds.seconds) * _NS_PER_S + int((fraction or "").ljust(9, "0"))
