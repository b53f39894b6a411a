"""BurstGPT: months of calls to ChatGPT and GPT-4.

::

    Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
    5,ChatGPT,472,18,490,Conversation log

Times are seconds since the first midnight. Columns are found by name, since files with more of them exist (`Session ID`
and `Elapsed time`). A call that failed has 0 response tokens: it is left out, and counted. Prompts are taken to share
nothing, since nothing says what they share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from engine.workload.prompt_shape import PromptShape
from engine.workload.reading import FileTime, Since, cannot_be_sent, shaped_rows
from engine.workload.request import WorkloadRequest

_NS_PER_S = 1e9


class _Row(msgspec.Struct):
    time: FileTime = msgspec.field(name="Timestamp")
    num_prompt_tokens: Annotated[int, Meta(ge=0)] = msgspec.field(name="Request tokens")
    num_output_tokens: Annotated[int, Meta(ge=0)] = msgspec.field(name="Response tokens")
    session: str = msgspec.field(name="Session ID", default="")


def read_burstgpt(path: Path, left_out: Counter[str]) -> Iterator[WorkloadRequest]:
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
        arrival_ns = since.first(round(row.time * _NS_PER_S), line)
        if not cannot_be_sent(row.num_prompt_tokens, row.num_output_tokens, left_out):
            shape = PromptShape.unlike_others(row.num_prompt_tokens, number)
            yield WorkloadRequest(shape, row.num_output_tokens, arrival_ns, session=row.session or None)
