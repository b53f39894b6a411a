"""Linear projections whose parts are stored as one matrix, so that several products become one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FusedLinear(nn.Module):
    """y = x Wᵀ + b, where W stacks the matrices of several projections of the same input.

    Args:
        in_features: size of the input.
        out_features: size of each part's output, in the order of the stack.
        bias: whether there is a b.
        dtype: dtype of W and b.
    """

    def __init__(self, in_features: int, out_features: tuple[int, ...], *, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.out_features = out_features
        # Left as allocated: a checkpoint fills every element.
        self.weight = nn.Parameter(torch.empty(sum(out_features), in_features, dtype=dtype), requires_grad=False)
        biases = torch.empty(sum(out_features), dtype=dtype)
        self.bias = nn.Parameter(biases, requires_grad=False) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] → [..., sum(out_features)]."""
        return F.linear(x, self.weight, self.bias)

    def parts(self, *names: str) -> dict[str, Tensor]:
        """Views of the parts' weights and biases, under the names that a checkpoint gives the parts."""
        views = {}
        for kind, parameter in (("weight", self.weight), ("bias", self.bias)):
            if parameter is not None:
                for name, view in zip(names, parameter.data.split(self.out_features), strict=True):
                    views[f"{name}.{kind}"] = view
        return views
