"""Root-mean-square normalisation with a learned weight."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kernels.rms_norm import add_rms_norm, rms_norm


class RMSNorm(nn.Module):
    """Normalise the last axis, of `size` elements."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] → [..., size]."""
        return rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Add `x` to the residual stream: (the sum normalised, the sum)."""
        return add_rms_norm(x, residual, self.weight, self.eps)
