"""RMSNorm, rotary embedding and SiLU-and-mul against their formulas in float64, in torch and in Triton."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import rms_norm as rms
from kernels import rotary_embedding as rotary
from kernels import silu_and_mul as silu

TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-14, torch.bfloat16: 0.02, torch.float16: 2e-3}
#: What Triton computes in.
NARROW = [dtype for dtype in TOLERANCE if dtype != torch.float64]
SHAPES = [(1, 8), (5, 576), (3, 4, 32), (2, 3, 5, 7), (1, 1025)]


def close(got: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype
    torch.testing.assert_close(
        got.double().cpu(), expected.double().cpu(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
    )


def normed(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.double()
    return wide / torch.sqrt((wide**2).mean(-1, keepdim=True) + 1e-5) * weight.double()


def turned(x: Tensor, angles: Tensor) -> Tensor:
    # A rotation is a product of complex numbers.
    first, second = x.double().chunk(2, dim=-1)
    planes = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat((planes.real, planes.imag), dim=-1)


def gated(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate / (1 + torch.exp(-gate)) * up


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[-1]).to(dtype)
    close(rms.rms_norm(x, weight, 1e-5), normed(x, weight), dtype)


@pytest.mark.parametrize("dtype", NARROW)
def test_rms_norm_in_triton(dtype: torch.dtype, device: str) -> None:
    for shape in SHAPES:
        x = torch.randn(shape, device=device).to(dtype)
        weight = torch.randn(shape[-1], device=device).to(dtype)
        close(rms.rms_norm_triton(x, weight, 1e-5), normed(x, weight), dtype)


def test_rms_norm_in_triton_reads_heads_out_of_a_wider_row(device: str) -> None:
    fused = torch.full((3, 7, 24), torch.nan, device=device)
    heads = fused[:, 2:5, :20]
    heads.copy_(torch.randn(3, 3, 20))
    weight = torch.randn(20, device=device)
    close(rms.rms_norm_triton(heads, weight, 1e-5), normed(heads, weight), torch.float32)
    transposed = torch.randn(20, 6, device=device).T
    close(rms.rms_norm_triton(transposed, weight, 1e-5), normed(transposed, weight), torch.float32)


def test_add_rms_norm_returns_the_sum_as_well() -> None:
    x, residual, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    result, summed = rms.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(summed, x + residual)
    assert torch.equal(result, rms.rms_norm(x + residual, weight, 1e-6))


@pytest.mark.parametrize("dtype", NARROW)
def test_add_rms_norm_in_triton(dtype: torch.dtype, device: str) -> None:
    x, residual = torch.randn(3, 2, 90, device=device).to(dtype).split(45, dim=-1)
    weight = torch.randn(45, device=device).to(dtype)
    result, summed = rms.add_rms_norm_triton(x, residual, weight, 1e-5)
    close(summed, x.double() + residual.double(), dtype)
    close(result, normed(summed, weight), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rotary_embedding_turns_each_plane(dtype: torch.dtype) -> None:
    x, angles = torch.randn(4, 3, 10).to(dtype), torch.randn(4, 5).double()
    result = rotary.rotary_embedding(x, angles.cos().to(dtype), angles.sin().to(dtype))
    torch.testing.assert_close(result.double(), turned(x, angles), atol=2 * TOLERANCE[dtype], rtol=2 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", NARROW)
def test_rotary_embedding_in_triton_turns_queries_and_keys_in_one_launch(dtype: torch.dtype, device: str) -> None:
    # Eighteen heads are more than a program takes, and behind them stand the values, which are none of its business.
    qkv = torch.full((3, 21, 10), torch.nan, device=device, dtype=dtype)
    qkv[:, :18] = torch.randn(3, 18, 10)
    angles = torch.randn(3, 5, device=device).double()
    result = rotary.rotary_embedding_triton(qkv[:, :18], angles.cos().to(dtype), angles.sin().to(dtype))
    assert result.is_contiguous() and result.dtype == dtype
    torch.testing.assert_close(
        result.double(), turned(qkv[:, :18], angles), atol=2 * TOLERANCE[dtype], rtol=2 * TOLERANCE[dtype]
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_silu_and_mul(dtype: torch.dtype) -> None:
    gate_up = torch.randn(3, 14).to(dtype)
    close(silu.silu_and_mul(gate_up), gated(gate_up), dtype)


@pytest.mark.parametrize("dtype", NARROW)
def test_silu_and_mul_in_triton(dtype: torch.dtype, device: str) -> None:
    for shape in [(3, 14), (2, 2, 6), (1, 2 * 1030)]:
        gate_up = torch.randn(shape, device=device).to(dtype)
        close(silu.silu_and_mul_triton(gate_up), gated(gate_up), dtype)
    wider = torch.full((4, 20), torch.nan, device=device, dtype=dtype)
    wider[:, 3:17] = torch.randn(4, 14)
    close(silu.silu_and_mul_triton(wider[:, 3:17]), gated(wider[:, 3:17]), dtype)


def test_extreme_gates_are_finite(device: str) -> None:
    gate_up = torch.tensor([[-1e4, -100.0, 100.0, 1e4, 1.0, 1.0, 1.0, 1.0]], device=device)
    for gate in (silu.silu_and_mul, silu.silu_and_mul_triton):
        torch.testing.assert_close(gate(gate_up).cpu(), torch.tensor([[0.0, 0.0, 100.0, 1e4]]))


def test_no_tokens_are_no_trouble(device: str) -> None:
    nothing = torch.empty(0, 2, 8, device=device)
    assert rms.rms_norm_triton(nothing, torch.ones(8, device=device), 1e-5).shape == (0, 2, 8)
    assert rotary.rotary_embedding_triton(nothing, nothing[:, 0, :4], nothing[:, 0, :4]).shape == (0, 2, 8)
    assert silu.silu_and_mul_triton(nothing).shape == (0, 2, 4)


def test_shapes_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="weight must be"):
        rms.rms_norm(torch.ones(2, 4), torch.ones(3), 1e-6)
    with pytest.raises(ValueError, match="residual must be"):
        rms.add_rms_norm(torch.ones(2, 4), torch.ones(1, 4), torch.ones(4), 1e-6)
    with pytest.raises(ValueError, match="x must be"):
        rotary.rotary_embedding(torch.ones(2, 1, 6), torch.ones(2, 6), torch.ones(2, 6))
    with pytest.raises(ValueError, match="equal parts"):
        silu.silu_and_mul(torch.ones(2, 3))
