"""Custom prompts, one a line, as vLLM's benchmarks take them.

::

    {"prompt": "What is an orrery?", "output_tokens": 64}
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from engine.errors import WorkloadError
from engine.workload.reading import read_json_lines, shaped
from engine.workload.request import WorkloadRequest

if TYPE_CHECKING:
    from random import Random


class _Line(msgspec.Struct):
    prompt: Annotated[str, Meta(min_length=1)]
    output_tokens: Annotated[int, Meta(ge=1)] | None = None


def read_custom(
    path: Path, count: int, rng: Random, as_prompt: Callable[[str], str], output_tokens: int | None = None
) -> list[WorkloadRequest]:
    """At most `count` prompts in random order, which for the same file and seed is vLLM's.

    Args:
        path: the JSON Lines file.
        count: how many are wanted.
        rng: shuffles them.
        as_prompt: what is sent for a text: its rendering by a chat template, or the text itself.
        output_tokens: to generate per request; None: as many as each line says.

    Raises:
        WorkloadError: a line is not of this form, or says no length where one is needed.
        OSError: the file cannot be read.
    """
    numbered = [(number, shaped(value, _Line, path, f"line {number}")) for number, value in read_json_lines(path)]
    if not numbered:
        raise WorkloadError(f"{path}: it holds no prompts.")
    rng.shuffle(numbered)
    requests = []
    for number, line in numbered[:count]:
        wanted = line.output_tokens if output_tokens is None else output_tokens
        if wanted is None:
            raise WorkloadError(f"{path}, line {number}: it has no `output_tokens`, and no output length was given.")
        requests.append(WorkloadRequest(as_prompt(line.prompt), wanted))
    return requests
