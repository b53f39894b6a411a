"""Prompts of which only the length is known, and which of their parts are those of other prompts.

Public traces hold no text: they count tokens, and some name the blocks that prompts share by ids (`hash_ids`). A
`PromptShape` says just that, and makes token ids of it: equal parts get equal tokens, so that the prefix cache finds
between them what it would have found between the prompts themselves.

::

    hash_ids [46, 47, 90] of 512 tokens, 1100 in all:  │ 46 × 512 │ 47 × 512 │ 90 × 76 │
    a prompt that shares nothing:                      │ -8 × 1100                     │
"""

from __future__ import annotations

from typing import NamedTuple

#: Tokens that spell the number of a span; whoever shares them shares the span.
_NUM_DIGITS = 4


class Span(NamedTuple):
    """Part of a prompt."""

    content: int
    """Which tokens these are: the spans of one number begin alike, and no two numbers do. Negative: of one prompt."""
    num_tokens: int

    def token_ids(self, vocab_size: int) -> list[int]:
        """Its tokens: the number's lowest digits in base `vocab_size`, then ids that count up, the same every time.

        Args:
            vocab_size: ids are below it; at least 2.
        """
        number = 2 * self.content if self.content >= 0 else -2 * self.content - 1
        digits = [number // vocab_size**place % vocab_size for place in range(min(_NUM_DIGITS, self.num_tokens))]
        first, left = number % vocab_size, self.num_tokens - len(digits)
        if first + left <= vocab_size:
            return [*digits, *range(first, first + left)]
        return [*digits, *((first + place) % vocab_size for place in range(left))]


class PromptShape(NamedTuple):
    """The parts of a prompt, in order."""

    spans: tuple[Span, ...]

    @property
    def num_tokens(self) -> int:
        """Length of the prompt."""
        return sum(span.num_tokens for span in self.spans)

    def token_ids(self, vocab_size: int) -> list[int]:
        """A prompt of this shape: ids from 0 to `vocab_size` - 1, the same every time."""
        if len(self.spans) == 1:
            return self.spans[0].token_ids(vocab_size)
        return [token_id for span in self.spans for token_id in span.token_ids(vocab_size)]

    @classmethod
    def unlike_others(cls, num_tokens: int, number: int) -> PromptShape:
        """A prompt that shares nothing with any other.

        Args:
            num_tokens: its length.
            number: its place in the workload, from 0.
        """
        return cls((Span(-1 - number, num_tokens),))
