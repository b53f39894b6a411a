"""Files of token ids: workloads by name, so that every engine gets the very same tokens, whatever its tokenizer.

::

    {"dec1": [{"prompt": [46324, 18, 1530, …], "out": 128}], "pre8": […], …}

`prompt` holds the ids of one request, `out` how many tokens are to be generated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from engine.errors import WorkloadError
from engine.workload.reading import read_json, shaped
from engine.workload.request import WorkloadRequest


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    prompt: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1)]
    out: Annotated[int, Meta(ge=1)]


def read_token_ids(path: Path) -> dict[str, list[WorkloadRequest]]:
    """All workloads of a file, in its order.

    Raises:
        WorkloadError: the file is not of this form; says where.
        OSError: it cannot be read.
    """
    named = read_json(path)
    if not isinstance(named, dict) or not named:
        raise WorkloadError(f"{path}: a file of token ids is an object with a list of requests by name.")
    return {name: _requests(entries, path, name) for name, entries in named.items()}


def _requests(entries: object, path: Path, name: str) -> list[WorkloadRequest]:
    if not isinstance(entries, list) or not entries:
        raise WorkloadError(f"{path}, workload {name!r}: it must be a list of at least one request.")
    shapes = (shaped(entry, _Entry, path, f"workload {name!r}, request {i}") for i, entry in enumerate(entries))
    return [WorkloadRequest(entry.prompt, entry.out) for entry in shapes]
