"""One request of a workload, and a workload made longer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from random import Random

CountTokens = Callable[[str], int]
"""How many tokens a text is to the model's tokenizer."""


class WorkloadRequest(NamedTuple):
    """What is sent, and how much is to come back."""

    prompt: str | list[int]
    """Text, or token ids."""
    output_tokens: int
    """Tokens to generate, at least 1; the end of sequence is ignored."""

    @property
    def token_ids(self) -> list[int]:
        """The prompt of a request that was made of token ids."""
        assert isinstance(self.prompt, list)
        return self.prompt


def oversampled(requests: Sequence[WorkloadRequest], count: int, rng: Random) -> list[WorkloadRequest]:
    """The first `count` requests; of a workload with fewer, all of them and then some drawn at random, as vLLM does."""
    missing = max(0, count - len(requests))
    return [*requests[:count], *(rng.choice(requests) for _ in range(missing))]
