"""Rotary position embedding (Su et al., 2021), in the half-split order of GPT-NeoX and the Llama family.

Each head's vector is read as head_size / 2 planes, element i paired with element i + head_size / 2, and plane i is
turned by the angle position · θ_i::

    y[i]          = x[i] · cos − x[i + half] · sin
    y[i + half]   = x[i + half] · cos + x[i] · sin

Queries and keys stand side by side on the heads' axis, as the fused projection leaves them, so one launch turns both:
a program takes one token and some heads, and reads the token's cosines and sines once for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.jit import cdiv, jit, next_power_of_2, runs_on_triton
from kernels.specimen import Specimen

if TYPE_CHECKING:
    import triton.language as tl

#: Most heads of one program.
_HEADS = 16


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
    return rotary_embedding_triton(x, cos, sin) if runs_on_triton(x) else rotary_embedding_reference(x, cos, sin)


def rotary_embedding_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`rotary_embedding` in torch."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def rotary_embedding_triton(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`rotary_embedding` in Triton; products and sums are taken in float32."""
    num_tokens, num_heads, head_size = x.shape
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if not out.numel():
        return out
    x = x if x.stride(-1) == 1 else x.contiguous()
    heads = min(next_power_of_2(num_heads), _HEADS)
    _rotary_kernel[(num_tokens, cdiv(num_heads, heads))](
        out,
        x,
        cos.contiguous(),
        sin.contiguous(),
        *x.stride()[:2],
        num_heads,
        head_size // 2,
        HEADS=heads,
        HALF=next_power_of_2(head_size // 2),
        num_warps=4,
    )
    return out


@jit
def _rotary_kernel(
    out: tl.tensor,
    x: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    x_token: int,
    x_head: int,
    num_heads: int,
    half: int,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    plane = tl.arange(0, HALF)[None, :]
    inside = (head < num_heads) & (plane < half)
    cosine = tl.load(cos + token * half + plane, mask=plane < half, other=0.0).to(tl.float32)
    sine = tl.load(sin + token * half + plane, mask=plane < half, other=0.0).to(tl.float32)
    read = x + token * x_token + head * x_head + plane
    first = tl.load(read, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(read + half, mask=inside, other=0.0).to(tl.float32)
    write = out + (token * num_heads + head) * 2 * half + plane
    tl.store(write, first * cosine - second * sine, mask=inside)
    tl.store(write + half, second * cosine + first * sine, mask=inside)


def specimens() -> list[Specimen]:
    """Sixteen heads of 128 in bfloat16."""
    heads, half = 16, 64
    signature: dict[str, str] = dict.fromkeys(("out", "x", "cos", "sin"), "*bf16")
    signature |= {"x_token": "i32:16", "x_head": "i32:16", "num_heads": "i32", "half": "i32:16"}
    return [
        Specimen(
            "rotary_embedding",
            _rotary_kernel,
            signature,
            {"HEADS": heads, "HALF": half},
            num_warps=4,
            num_stages=2,
            flops=6 * heads * half,
            bytes=2 * (4 * heads * half + 2 * half),
        )
    ]
