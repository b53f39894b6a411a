"""What a user gets back: `RequestOutput` and the `CompletionOutput`s in it, shaped as vLLM's are."""

from __future__ import annotations

import msgspec

from engine.logprobs import TokenLogprobs
from engine.metrics import RequestMetrics


class CompletionOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One completion of a prompt: as far as it has come, or in deltas what is new of it."""

    index: int
    """Which of the prompt's completions this is."""
    text: str
    """What can be shown so far: the end of it is held back while it may be the beginning of a stop string."""
    token_ids: list[int]
    """All output tokens so far, a stop token included."""
    cumulative_logprob: float | None = None
    """Sum of the log probabilities of all output tokens so far; None unless logprobs were asked for."""
    logprobs: list[TokenLogprobs] | None = None
    """Per token of `token_ids`; None unless asked for."""
    finish_reason: str | None = None
    """stop, length, abort or error; None while it goes on."""
    stop_reason: int | str | None = None
    """The stop string or stop token id that ended it; None for the model's own end of sequence."""

    def finished(self) -> bool:
        """Whether it has come to its end."""
        return self.finish_reason is not None


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of one prompt."""

    request_id: str
    prompt: str | None
    """The prompt's text; None if it was given as token ids or embeddings."""
    prompt_token_ids: list[int]
    """Empty for a prompt of embeddings."""
    outputs: list[CompletionOutput]
    """All completions in their order; in deltas only those with something new."""
    finished: bool
    """Whether every completion has come to its end."""
    num_cached_tokens: int
    """Prompt tokens that the prefix cache spared."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Per prompt token; the first has None, since nothing precedes it. None unless asked for, and until computed; in
    deltas it comes once."""
    error: str | None = None
    """If the finish reason is error: what went wrong, in one sentence."""
    metrics: RequestMetrics | None = None
    """Its times and counts, which go on while it lives; None unless `disable_log_stats=False`."""
