"""ShareGPT: recorded conversations, of which the first question is the prompt and the first answer gives the length.

::

    [{"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}, …]}, …]

Which conversations are taken, and in which order, is vLLM's rule: for the same file and seed they are the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.errors import WorkloadError
from engine.workload.reading import read_json, shaped
from engine.workload.request import CountTokens, WorkloadRequest

if TYPE_CHECKING:
    from random import Random

#: Tokens of a prompt and of an answer that are worth measuring.
_FEWEST_TOKENS = 4
_MOST_PROMPT_TOKENS = 1024
_MOST_TOKENS = 2048


class _Turn(msgspec.Struct):
    value: str


class _Entry(msgspec.Struct):
    conversations: list[_Turn] = []


def read_sharegpt(
    path: Path, count: int, rng: Random, count_tokens: CountTokens, output_tokens: int | None = None
) -> list[WorkloadRequest]:
    """At most `count` conversations in random order.

    Args:
        path: the JSON file.
        count: how many are wanted.
        rng: shuffles them.
        count_tokens: of the model, for the lengths.
        output_tokens: to generate per request; None: as many as the recorded answer has.

    Raises:
        WorkloadError: the file is not of this form, or no conversation in it is of a length to measure.
        OSError: it cannot be read.
    """
    entries = read_json(path)
    if not isinstance(entries, list):
        raise WorkloadError(f"{path}: a ShareGPT file is a list of conversations.")
    conversations = [shaped(entry, _Entry, path, f"entry {i}").conversations for i, entry in enumerate(entries)]
    exchanges = [(turns[0].value, turns[1].value) for turns in conversations if len(turns) > 1]
    if not exchanges:
        raise WorkloadError(
            f"{path}: it holds no conversation, which has at least a question and an answer"
            + (f"; all of its {len(entries)} entries are shorter." if entries else ".")
        )
    rng.shuffle(exchanges)
    requests: list[WorkloadRequest] = []
    for question, answer in exchanges:
        if len(requests) == count:
            break
        wanted = count_tokens(answer) if output_tokens is None else output_tokens
        if _worth_measuring(count_tokens(question), wanted, chosen=output_tokens is not None):
            requests.append(WorkloadRequest(question, wanted))
    if not requests:
        raise WorkloadError(
            f"{path}: none of its {len(exchanges)} conversations has a prompt of {_FEWEST_TOKENS} to "
            f"{_MOST_PROMPT_TOKENS} tokens and at most {_MOST_TOKENS} with the answer."
        )
    return requests


def _worth_measuring(prompt_tokens: int, output_tokens: int, *, chosen: bool) -> bool:
    """An output length that the user chose may be short."""
    return (
        _FEWEST_TOKENS <= prompt_tokens <= _MOST_PROMPT_TOKENS
        and (chosen or output_tokens >= _FEWEST_TOKENS)
        and prompt_tokens + output_tokens <= _MOST_TOKENS
    )
