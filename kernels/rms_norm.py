"""Root-mean-square normalisation (Zhang and Sennrich, 2019): y = x / sqrt(mean(x²) + eps) · w, over the last axis.

In a transformer what is normalised is the residual stream, to which the output of the layer before has yet to be
added; `add_rms_norm` does both in one pass over memory. On a GPU one program takes one row, in registers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.jit import jit, next_power_of_2, runs_on_triton
from kernels.specimen import Specimen

if TYPE_CHECKING:
    import triton.language as tl


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
    return rms_norm_triton(x, weight, eps) if runs_on_triton(x) else rms_norm_reference(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add a residual stream, then normalise: `(rms_norm(x + residual), x + residual)`.

    Args and errors as in `rms_norm`; `residual` has the shape and dtype of `x`.
    """
    if residual.shape != x.shape:
        raise ValueError(f"residual must be {list(x.shape)}, got {list(residual.shape)}.")
    if runs_on_triton(x):
        return add_rms_norm_triton(x, residual, weight, eps)
    summed = x + residual
    return rms_norm(summed, weight, eps), summed


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`rms_norm` in torch."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    inverse_rms = wide.pow(2).mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * inverse_rms).to(x.dtype).mul_(weight)


def rms_norm_triton(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`rms_norm` in Triton."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _launch(out, out, x, x, weight, eps, add=False)
    return out


def add_rms_norm_triton(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`add_rms_norm` in Triton, in one launch."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    summed = torch.empty_like(out)
    _launch(out, summed, x, residual, weight, eps, add=True)
    return out, summed


def _launch(out: Tensor, summed: Tensor, x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, add: bool) -> None:
    size = x.shape[-1]
    rows = x.numel() // size if size else 0
    if not rows:
        return
    x, residual = _three_axes(x), _three_axes(residual)
    block = next_power_of_2(size)
    _rms_norm_kernel[(rows,)](
        out,
        summed,
        x,
        residual,
        weight.contiguous(),
        *x.stride()[:2],
        *residual.stride()[:2],
        x.shape[1],
        size,
        eps,
        ADD=add,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 16),
    )


def _three_axes(x: Tensor) -> Tensor:
    """[outer, inner, size] with the last axis dense. Heads sliced out of a fused projection need no copy."""
    x = x if x.dim() == 3 else x.reshape(-1, 1, x.shape[-1])
    return x if x.stride(-1) == 1 else x.contiguous()


@jit
def _rms_norm_kernel(
    out: tl.tensor,
    summed: tl.tensor,
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    x_outer: int,
    x_inner: int,
    residual_outer: int,
    residual_inner: int,
    inner: int,
    size: int,
    eps: float,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    outer_at, inner_at = row // inner, row % inner
    column = tl.arange(0, BLOCK)
    inside = column < size
    values = tl.load(x + outer_at * x_outer + inner_at * x_inner + column, mask=inside, other=0.0)
    if ADD:
        added = tl.load(
            residual + outer_at * residual_outer + inner_at * residual_inner + column, mask=inside, other=0.0
        )
        # The sum is rounded as it is stored, and what is normalised is the rounded one.
        values = (values.to(tl.float32) + added.to(tl.float32)).to(values.dtype)
        tl.store(summed + row * size + column, values, mask=inside)
    wide = values.to(tl.float32)
    inverse_rms = tl.rsqrt(tl.sum(wide * wide, axis=0) / size + eps)
    normed = (wide * inverse_rms).to(values.dtype).to(tl.float32)
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + column, (normed * scale).to(values.dtype), mask=inside)


def specimens() -> list[Specimen]:
    """A row of 4096 in bfloat16, with and without the residual."""
    size = 4096
    pointers = dict.fromkeys(("out", "summed", "x", "residual", "weight"), "*bf16")
    strides = dict.fromkeys(("x_outer", "x_inner", "residual_outer", "residual_inner"), "i32:16")
    signature = {**pointers, **strides, "inner": "i32", "size": "i32:16", "eps": "fp32"}
    return [
        Specimen(
            name,
            _rms_norm_kernel,
            signature,
            {"ADD": add, "BLOCK": size},
            num_warps=8,
            num_stages=2,
            flops=(5 if add else 4) * size,
            bytes=2 * (5 if add else 3) * size,
        )
        for name, add in (("rms_norm", False), ("add_rms_norm", True))
    ]
