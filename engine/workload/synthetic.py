"""Prompts that are made up: random token ids of chosen lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.errors import WorkloadError
from engine.workload.request import WorkloadRequest

if TYPE_CHECKING:
    from random import Random


def random_requests(
    count: int,
    rng: Random,
    token_ids: Sequence[int],
    *,
    input_tokens: int,
    output_tokens: int,
    range_ratio: float = 0.0,
    prefix_tokens: int = 0,
) -> list[WorkloadRequest]:
    """Requests whose prompts begin with one common prefix and have nothing else in common.

    Args:
        count: how many.
        rng: draws lengths and tokens.
        token_ids: the ids to draw from.
        input_tokens: mean length of a prompt after the prefix.
        output_tokens: mean tokens to generate.
        range_ratio: both lengths are drawn uniformly from mean × (1 - ratio) to mean × (1 + ratio).
        prefix_tokens: length of the common prefix.

    Raises:
        WorkloadError: a length or the ratio is out of range.
    """
    if not 0.0 <= range_ratio < 1.0:
        raise WorkloadError(f"The range ratio must be in [0, 1), got {range_ratio}.")
    if output_tokens < 1 or prefix_tokens < 0 or prefix_tokens + math.floor(input_tokens * (1 - range_ratio)) < 1:
        raise WorkloadError(
            f"Prompt and output must have at least one token each, got {prefix_tokens} + {input_tokens} in and "
            f"{output_tokens} out."
        )
    prefix = rng.choices(token_ids, k=prefix_tokens)
    return [
        WorkloadRequest(
            prefix + rng.choices(token_ids, k=_length(input_tokens, range_ratio, 0, rng)),
            _length(output_tokens, range_ratio, 1, rng),
        )
        for _ in range(count)
    ]


def _length(mean: int, ratio: float, least: int, rng: Random) -> int:
    return max(least, rng.randint(math.floor(mean * (1 - ratio)), math.ceil(mean * (1 + ratio))))
