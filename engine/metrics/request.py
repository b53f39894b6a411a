"""The times of one request, and its counts."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import sub
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    _Times = array[int]
else:  # up to Python 3.11 an array has no type of its elements when the program runs
    _Times = array


@dataclass(slots=True)
class RequestMetrics:
    """One request. It grows while the request lives; what has not happened yet is None.

    Points in time are nanoseconds since the trace began, spans are nanoseconds.
    """

    serial: int
    request_id: str
    num_prompt_tokens: int
    arrival_ns: int
    """When it entered the core, its prompt tokenised."""
    first_scheduled_ns: int | None = None
    """When it was first given tokens in a step."""
    output_times_ns: _Times = field(default_factory=lambda: array("q"), repr=False)
    """When its tokens came: one entry per step that brought any, since tokens of one step come together."""
    finished_ns: int | None = None
    finish_reason: str | None = None
    """As its client sees it: an end by a stop string is a stop. None while it lives."""
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens that the prefix cache (or a KV connector) spared at the first admission."""
    num_preemptions: int = 0

    @property
    def is_completed(self) -> bool:
        """Whether it came to its own end; one that was aborted or failed says nothing about latency."""
        return self.finish_reason in ("stop", "length")

    @property
    def first_token_ns(self) -> int | None:
        """When its first token came."""
        return self.output_times_ns[0] if self.output_times_ns else None

    @property
    def last_token_ns(self) -> int | None:
        """When its last token so far came."""
        return self.output_times_ns[-1] if self.output_times_ns else None

    @property
    def queue_ns(self) -> int | None:
        """Waiting: from arrival until it was first scheduled."""
        return _span(self.arrival_ns, self.first_scheduled_ns)

    @property
    def prefill_ns(self) -> int | None:
        """From first being scheduled to the first token, over all chunks of the prompt."""
        return _span(self.first_scheduled_ns, self.first_token_ns)

    @property
    def decode_ns(self) -> int | None:
        """From the first token to the last, time lost to preemptions included."""
        return _span(self.first_token_ns, self.last_token_ns)

    @property
    def ttft_ns(self) -> int | None:
        """Time to first token: from arrival."""
        return _span(self.arrival_ns, self.first_token_ns)

    @property
    def itls_ns(self) -> list[int]:
        """Inter-token latencies: from each step that brought tokens to the next; empty for a single one.

        Accepted draft tokens share the latency of their step, as they share a chunk in a stream. TTFT and these add
        up to E2EL.
        """
        return list(map(sub, self.output_times_ns[1:], self.output_times_ns))

    @property
    def tpot_ns(self) -> float | None:
        """Time per output token after the first: decode time / (output tokens - 1); None for a single token."""
        decode_ns = self.decode_ns
        return None if decode_ns is None or self.num_output_tokens < 2 else decode_ns / (self.num_output_tokens - 1)

    @property
    def e2el_ns(self) -> int | None:
        """End-to-end latency: from arrival to the last token."""
        return _span(self.arrival_ns, self.last_token_ns)

    def latencies_ns(self, name: str) -> Sequence[float]:
        """Its values of ttft, tpot, itl, e2el, queue, prefill or decode: none, one, or for itl any number."""
        if name == "itl":
            return self.itls_ns
        value: float | None = getattr(self, f"{name}_ns")
        return () if value is None else (value,)


def _span(start: int | None, end: int | None) -> int | None:
    return None if start is None or end is None else end - start
