"""One request of a workload, and a workload made longer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from engine.workload.prompt_shape import PromptShape

if TYPE_CHECKING:
    from random import Random

CountTokens = Callable[[str], int]
"""How many tokens a text is to the model's tokenizer."""


class WorkloadRequest(NamedTuple):
    """What is sent and when, and how much is to come back."""

    prompt: str | list[int] | PromptShape
    """Text, token ids, or, where a file tells no more, its length and what it shares with other prompts."""
    output_tokens: int
    """Tokens to generate, at least 1; the end of sequence is ignored."""
    arrival_ns: int = 0
    """When it is sent: nanoseconds since the workload began."""
    priority: int = 0
    """Lower is served first under the priority policy."""
    cache_salt: str | None = None
    """Only requests of the same salt share KV blocks."""
    session: str | None = None
    """The conversation that it belongs to, as its file names it."""

    @property
    def token_ids(self) -> list[int]:
        """The prompt of a request that was made of token ids."""
        assert isinstance(self.prompt, list)
        return self.prompt


def oversampled(requests: Sequence[WorkloadRequest], count: int, rng: Random) -> list[WorkloadRequest]:
    """The first `count` requests; of a workload with fewer, all of them and then some drawn at random, as vLLM does."""
    missing = max(0, count - len(requests))
    return [*requests[:count], *(rng.choice(requests) for _ in range(missing))]
