"""One engine step in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class IterationMetrics:
    """One engine step, from the moment it was planned until its output was taken in.

    Points in time are nanoseconds since the trace began.
    """

    step: int
    started_ns: int
    """When planning began."""
    ended_ns: int
    """When its output had been applied; of a step without rows, when it had been planned."""
    token_budget: int
    """`max_num_batched_tokens`."""
    num_running: int
    """Length of the running queue as planning began."""
    num_waiting: int
    """Length of the waiting queue as planning began."""
    usable_blocks: int
    """KV cache blocks of the pool, the null block not counted."""
    free_blocks: int
    """Blocks that could be handed out once the step was planned, cached ones included."""
    num_rows: int = 0
    """Requests that got tokens."""
    prefill_tokens: int = 0
    decode_tokens: int = 0
    output_tokens: int = 0
    """Tokens that requests got out of it."""
    preemptions: int = 0
    queried_tokens: int = 0
    """Tokens for which the prefix cache was asked, by the requests admitted in this step; vLLM's queries."""
    hit_tokens: int = 0
    """Of these, the tokens that it spared; vLLM's hits."""
    evictions: int = 0
    """Cached blocks handed out again: prefixes lost."""
    finishes: int = 0
    drafted: tuple[int, ...] = ()
    """Drafts verified, by their place among those of their request; empty without speculation."""
    accepted: tuple[int, ...] = ()
    """Of these, the drafts accepted."""

    @property
    def tokens(self) -> int:
        """Length of the super-sequence."""
        return self.prefill_tokens + self.decode_tokens

    @property
    def duration_ns(self) -> int:
        """How long it took. Steps that overlap, in an asynchronous loop, each count in full."""
        return self.ended_ns - self.started_ns

    @property
    def blocks_in_use(self) -> int:
        """Blocks that requests hold while the step runs."""
        return self.usable_blocks - self.free_blocks

    @property
    def kv_cache_usage(self) -> float:
        """Share of the usable blocks that requests hold while the step runs, 0 to 1."""
        return self.blocks_in_use / self.usable_blocks
