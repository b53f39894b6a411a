"""When a request has reached its end, by its tokens alone. (Stop strings need text:
`engine/frontend/stop_strings.py` looks for them, and the request is aborted.)"""

from __future__ import annotations

from typing import NamedTuple

from engine.core.messages import RequestStatus
from engine.core.request import Request


class Stop(NamedTuple):
    """The end of a request."""

    status: RequestStatus
    stop_reason: int | None


def check_stop(request: Request, max_model_len: int) -> Stop | None:
    """Whether the token appended last ends the request: by length, then EOS, then a stop token id.

    With `ignore_eos` a request has no `eos_token_ids`.
    """
    num_tokens, sampling_params = request.num_tokens, request.sampling_params
    num_output_tokens = num_tokens - request.num_prompt_tokens
    if num_tokens >= max_model_len or num_output_tokens >= request.max_tokens:
        return Stop(RequestStatus.FINISHED_LENGTH_CAPPED, None)
    if num_output_tokens < sampling_params.min_tokens:
        return None
    last_token_id = request.token_ids[-1]
    if last_token_id in request.eos_token_ids:
        return Stop(RequestStatus.FINISHED_STOPPED, None)
    if last_token_id in sampling_params.stop_token_ids:
        return Stop(RequestStatus.FINISHED_STOPPED, last_token_id)
    return None
