"""Prompts given as embeddings, checked at the door. Torch is imported only when there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import RequestError

if TYPE_CHECKING:
    from torch import Tensor


def require_embeds(embeds: object, hidden_size: int, dtype: str) -> Tensor:
    """See that what a user gives can be a prompt's embeddings.

    Args:
        embeds: what the user gave.
        hidden_size: elements of a hidden state.
        dtype: the model's, in which it reads them.

    Returns:
        [num_tokens, hidden_size], floating point.

    Raises:
        RequestError: it is no such tensor, or not all of its numbers are finite.
    """
    import torch

    if not isinstance(embeds, torch.Tensor):
        raise RequestError(f"prompt_embeds must be a torch tensor, got {type(embeds).__name__}.")
    if not embeds.is_floating_point():
        kind = str(embeds.dtype).removeprefix("torch.")
        raise RequestError(f"prompt_embeds must be of a floating-point dtype, got {kind}.")
    if embeds.dim() != 2 or embeds.shape[1] != hidden_size:
        raise RequestError(f"prompt_embeds must be [tokens, {hidden_size}], got {list(embeds.shape)}.")
    # As the model will read them: what is finite in float64 may be infinite in a narrower dtype.
    if not bool(embeds.to(getattr(torch, dtype)).isfinite().all()):
        raise RequestError(f"prompt_embeds must be finite in {dtype}, but it holds NaN or infinity.")
    # A copy: what the caller does to the tensor afterwards must not reach a request that is computed anew.
    return embeds.detach().clone()
