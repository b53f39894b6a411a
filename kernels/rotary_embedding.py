"""Rotary position embedding (Su et al., 2021), in the half-split order of GPT-NeoX and the Llama family.

Each head's vector is read as head_size / 2 planes, element i paired with element i + head_size / 2, and plane i is
turned by the angle position · θ_i::

    y[i]          = x[i] · cos − x[i + half] · sin
    y[i + half]   = x[i + half] · cos + x[i] · sin
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn every head of every token by its position's angles.

    Args:
        x: [num_tokens, num_heads, head_size]; queries and keys may stand side by side on the heads' axis.
        cos, sin: [num_tokens, head_size / 2], dtype of `x`: of the angles at each token's position.

    Returns:
        [num_tokens, num_heads, head_size], contiguous.

    Raises:
        ValueError: shapes that contradict each other.
    """
    if x.dim() != 3 or cos.shape != (x.shape[0], x.shape[2] // 2) or sin.shape != cos.shape or x.shape[2] % 2:
        raise ValueError(
            "x must be [num_tokens, num_heads, an even head_size] and cos and sin [num_tokens, head_size / 2], got "
            f"{list(x.shape)}, {list(cos.shape)} and {list(sin.shape)}."
        )
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
