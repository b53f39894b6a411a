"""How many tokens a request gets in a step: a pure function of the request's counts and the limits."""

from __future__ import annotations

from typing import Literal, NamedTuple

Limit = Literal["token_budget", "long_prefill_token_threshold", "max_model_len"]


class Wanted(NamedTuple):
    """The tokens a request wants, those it gets, and the limit that made the difference."""

    num_wanted_tokens: int
    num_tokens: int
    truncated_by: Limit | None


#: What nearly every row of every step is: a decode.
_ONE_TOKEN = Wanted(1, 1, None)


def tokens_wanted(
    num_tokens: int, num_computed_tokens: int, budget: int, long_prefill_token_threshold: int, max_model_len: int
) -> Wanted:
    """Everything not yet computed, cut by the threshold for long prefills, the budget and the model's length.

    This is the whole of chunked prefill: a prompt that is cut simply still wants the rest in the next step.

    Args:
        num_tokens: prompt, output and draft tokens of the request.
        num_computed_tokens: those with KV in the cache.
        budget: tokens left in this step.
        long_prefill_token_threshold: most tokens for one request in one step; 0 for no limit.
        max_model_len: only drafts can reach it; the token sampled after the last computed one must still fit.
    """
    wanted = num_tokens - num_computed_tokens
    if wanted == 1 and budget > 0 and num_computed_tokens + 1 < max_model_len:
        return _ONE_TOKEN
    granted: int = wanted
    limit: Limit | None = None
    if 0 < long_prefill_token_threshold < granted:
        granted, limit = long_prefill_token_threshold, "long_prefill_token_threshold"
    if budget < granted:
        granted, limit = budget, "token_budget"
    if max_model_len - 1 - num_computed_tokens < granted:
        granted, limit = max_model_len - 1 - num_computed_tokens, "max_model_len"
    return Wanted(wanted, granted, limit)
