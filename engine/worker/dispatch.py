"""Eager or captured: which steps replay a CUDA graph, and at which size.

A graph is recorded for one number of tokens. A step of decodes alone, one token a request, is padded to the next
number that was captured; whatever holds a piece of a prompt has a shape of its own and runs operation by operation::

    5 decodes                   ─►  captured at 8, three rows of padding
    5 decodes, 30 prompt tokens ─►  eager
    600 decodes                 ─►  eager: larger than the largest graph
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Literal, NamedTuple

#: vLLM's default list.
CAPTURE_SIZES = (1, 2, 4, *range(8, 513, 8))


class ExecutionMode(NamedTuple):
    """How a step runs."""

    mode: Literal["eager", "captured"]
    num_padded_tokens: int
    """Tokens of the super-sequence, padding included."""


def capture_sizes(asked: Sequence[int] | None, max_num_seqs: int) -> tuple[int, ...]:
    """Batch sizes to capture, ascending: those up to the first that holds `max_num_seqs` decodes.

    Args:
        asked: the user's own list; None: `CAPTURE_SIZES`.
        max_num_seqs: most decodes of a step.
    """
    sizes = sorted(set(CAPTURE_SIZES if asked is None else asked))
    return tuple(sizes[: bisect.bisect_left(sizes, max_num_seqs) + 1])


class GraphDispatcher:
    """Decides for each step.

    Args:
        sizes: the batch sizes that are captured, ascending; none: everything is eager.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)

    def dispatch(self, num_tokens: int, num_requests: int, *, has_embeds: bool) -> ExecutionMode:
        """How to run a step.

        Args:
            num_tokens: length of its super-sequence.
            num_requests: requests that share it.
            has_embeds: some prompt came as embeddings, which no graph reads.
        """
        only_decodes = num_tokens == num_requests
        if not self.sizes or not only_decodes or has_embeds or num_tokens > self.sizes[-1]:
            return ExecutionMode("eager", num_tokens)
        return ExecutionMode("captured", self.sizes[bisect.bisect_left(self.sizes, num_tokens)])
