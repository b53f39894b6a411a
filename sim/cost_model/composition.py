"""`StepComposition`: what of a step its time depends on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class RowShare(NamedTuple):
    """What one request has in a step."""

    num_computed_tokens: int
    """Tokens whose KV was there before."""
    num_scheduled_tokens: int
    """Tokens that run, drafts included."""
    num_logits: int
    """Tokens for which logits are computed: 0 in the middle of a prompt, else 1 and one per draft."""


class StepComposition(NamedTuple):
    """A step in numbers."""

    num_rows: int
    """Requests."""
    num_prefill_tokens: int
    """Tokens of requests that run more than one token without drafts."""
    num_decode_tokens: int
    """Tokens of the other requests, drafts included."""
    num_padded_tokens: int
    """Tokens that the model runs: all, and those that fill a captured graph up."""
    num_logits: int
    """Rows of logits."""
    num_kv_tokens: int
    """Tokens whose keys and values attention reads: each request's context, this step included."""
    prefill_pairs: int
    """Pairs of a query and a key that it sees, of the prefill tokens."""
    decode_pairs: int
    """The same of the decode tokens."""

    @property
    def num_tokens(self) -> int:
        """Length of the super-sequence."""
        return self.num_prefill_tokens + self.num_decode_tokens

    @property
    def pairs(self) -> int:
        """All pairs of a query and a key."""
        return self.prefill_pairs + self.decode_pairs

    @property
    def phase(self) -> str:
        """`prefill`, `decode` or `mixed`."""
        if not self.num_decode_tokens:
            return "prefill"
        return "mixed" if self.num_prefill_tokens else "decode"

    def with_decodes(self, num_rows: int, num_kv_tokens: int) -> StepComposition:
        """The same step with some decodes more, of one token each and of so many tokens of context together."""
        return StepComposition(
            self.num_rows + num_rows,
            self.num_prefill_tokens,
            self.num_decode_tokens + num_rows,
            self.num_padded_tokens + num_rows,
            self.num_logits + num_rows,
            self.num_kv_tokens + num_kv_tokens,
            self.prefill_pairs,
            self.decode_pairs + num_kv_tokens,
        )

    @classmethod
    def of(cls, rows: Iterable[RowShare | tuple[int, int, int]], num_padded_tokens: int = 0) -> StepComposition:
        """The sum of what the requests have in a step.

        Args:
            rows: one per request.
            num_padded_tokens: if more than there are tokens.
        """
        num_rows = prefill = decode = logits = kv = prefill_pairs = decode_pairs = 0
        for computed, scheduled, row_logits in rows:
            num_rows += 1
            logits += row_logits
            kv += computed + scheduled
            # The query at position i sees i + 1 keys.
            pairs = scheduled * computed + scheduled * (scheduled + 1) // 2
            if scheduled == row_logits:
                decode += scheduled
                decode_pairs += pairs
            else:
                prefill += scheduled
                prefill_pairs += pairs
        padded = max(prefill + decode, num_padded_tokens)
        return cls(num_rows, prefill, decode, padded, logits, kv, prefill_pairs, decode_pairs)
