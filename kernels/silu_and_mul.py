"""The gate of a SwiGLU feed-forward layer (Shazeer, 2020): y = silu(gate) · up, with silu(a) = a / (1 + exp(−a))."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.jit import cdiv, jit, runs_on_triton
from kernels.specimen import Specimen

if TYPE_CHECKING:
    import triton.language as tl

_BLOCK = 1024


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
    return silu_and_mul_triton(gate_up) if runs_on_triton(gate_up) else silu_and_mul_reference(gate_up)


def silu_and_mul_reference(gate_up: Tensor) -> Tensor:
    """`silu_and_mul` in torch."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def silu_and_mul_triton(gate_up: Tensor) -> Tensor:
    """`silu_and_mul` in Triton, in float32 between loading and storing."""
    size = gate_up.shape[-1] // 2
    out = torch.empty(*gate_up.shape[:-1], size, dtype=gate_up.dtype, device=gate_up.device)
    if not out.numel():
        return out
    rows = gate_up.reshape(-1, 2 * size)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    _silu_and_mul_kernel[(rows.shape[0], cdiv(size, _BLOCK))](
        out, rows, rows.stride(0), size, BLOCK=_BLOCK, num_warps=4
    )
    return out


@jit
def _silu_and_mul_kernel(out: tl.tensor, gate_up: tl.tensor, row_stride: int, size: int, BLOCK: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    read = gate_up + row * row_stride + column
    gate = tl.load(read, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(read + size, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + column, gate / (1.0 + tl.exp(-gate)) * up, mask=inside)


def specimens() -> list[Specimen]:
    """1024 elements of a row in bfloat16."""
    signature = {"out": "*bf16", "gate_up": "*bf16", "row_stride": "i32:16", "size": "i32:16"}
    return [
        Specimen(
            "silu_and_mul",
            _silu_and_mul_kernel,
            signature,
            {"BLOCK": _BLOCK},
            num_warps=4,
            num_stages=2,
            flops=5 * _BLOCK,
            bytes=2 * 3 * _BLOCK,
        )
    ]
