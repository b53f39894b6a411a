"""Several completions of a prompt: to the core they are requests like any other, which share blocks by their prefix."""

from __future__ import annotations

import msgspec

from engine.core.messages import EngineCoreRequest
from engine.sampling_params import MAX_SEED


def fan_out(request: EngineCoreRequest) -> list[EngineCoreRequest]:
    """The core requests that a user's request comes to: itself, or one child for each of its n completions.

    Child i is called `i_` and the user's name for the request, and has the seed `seed + i`.
    """
    params = request.sampling_params
    if params.n == 1:
        return [request]
    assert params.seed is not None  # the Processor has settled it
    return [
        msgspec.structs.replace(
            request,
            request_id=f"{index}_{request.request_id}",
            parent_id=request.request_id,
            child_index=index,
            sampling_params=msgspec.structs.replace(
                params,
                seed=(params.seed + index) & MAX_SEED,
                # The prompt is the same for all: the first one looks at it, the others may take it from the cache.
                prompt_logprobs=params.prompt_logprobs if index == 0 else None,
            ),
        )
        for index in range(params.n)
    ]
