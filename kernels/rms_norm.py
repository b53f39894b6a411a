"""Root-mean-square normalisation (Zhang and Sennrich, 2019): y = x / sqrt(mean(x²) + eps) · w, over the last axis."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last axis.

    The mean and the division are taken in float32 at least, and rounded to the dtype of `x` before the weight is
    applied, as the Llama family is trained.

    Args:
        x: [..., size].
        weight: [size], dtype of `x`.
        eps: added to the mean square.

    Returns:
        [..., size], dtype of `x`.

    Raises:
        ValueError: the weight does not match the last axis.
    """
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"weight must be [{x.shape[-1]}], got {list(weight.shape)}.")
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    inverse_rms = wide.pow(2).mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * inverse_rms).to(x.dtype).mul_(weight)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add a residual stream, then normalise: `(rms_norm(x + residual), x + residual)`.

    Args and errors as in `rms_norm`; `residual` has the shape and dtype of `x`.
    """
    if residual.shape != x.shape:
        raise ValueError(f"residual must be {list(x.shape)}, got {list(residual.shape)}.")
    summed = x + residual
    return rms_norm(summed, weight, eps), summed
