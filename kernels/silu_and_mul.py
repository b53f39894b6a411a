"""The gate of a SwiGLU feed-forward layer (Shazeer, 2020): y = silu(gate) · up, with silu(a) = a / (1 + exp(−a))."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """Gate the upper half of the last axis by the lower.

    Args:
        gate_up: [..., 2 × size], the gate first.

    Returns:
        [..., size], dtype of `gate_up`.

    Raises:
        ValueError: the last axis is odd.
    """
    if gate_up.shape[-1] % 2:
        raise ValueError(f"the last axis must hold gate and up in equal parts, got {list(gate_up.shape)}.")
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
