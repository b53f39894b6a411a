"""RMSNorm, rotary embedding and SiLU-and-mul against their formulas in float64."""

from __future__ import annotations

import pytest
import torch

from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rotary_embedding import rotary_embedding
from kernels.silu_and_mul import silu_and_mul

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 0.02}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(1, 8), (5, 576), (3, 4, 32)])
def test_rms_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[-1]).to(dtype)
    wide = x.double()
    expected = wide / torch.sqrt((wide**2).mean(-1, keepdim=True) + 1e-5) * weight.double()
    torch.testing.assert_close(
        rms_norm(x, weight, 1e-5).double(), expected, atol=TOLERANCE[dtype], rtol=2 * TOLERANCE[dtype]
    )


def test_add_rms_norm_returns_the_sum_as_well() -> None:
    x, residual, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    normed, summed = add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(summed, x + residual)
    assert torch.equal(normed, rms_norm(x + residual, weight, 1e-6))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rotary_embedding_turns_each_plane(dtype: torch.dtype) -> None:
    x = torch.randn(4, 3, 10).to(dtype)
    angles = torch.randn(4, 5).double()
    turned = rotary_embedding(x, angles.cos().to(dtype), angles.sin().to(dtype))
    # A rotation is a product of complex numbers.
    planes = torch.complex(x.double()[..., :5], x.double()[..., 5:])
    expected = planes * torch.polar(torch.ones_like(angles), angles)[:, None]
    torch.testing.assert_close(
        turned.double(),
        torch.cat((expected.real, expected.imag), dim=-1),
        atol=2 * TOLERANCE[dtype],
        rtol=2 * TOLERANCE[dtype],
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_silu_and_mul(dtype: torch.dtype) -> None:
    gate_up = torch.randn(3, 14).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    expected = gate / (1 + torch.exp(-gate)) * up
    torch.testing.assert_close(
        silu_and_mul(gate_up).double(), expected, atol=TOLERANCE[dtype], rtol=2 * TOLERANCE[dtype]
    )


def test_shapes_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="weight must be"):
        rms_norm(torch.ones(2, 4), torch.ones(3), 1e-6)
    with pytest.raises(ValueError, match="residual must be"):
        add_rms_norm(torch.ones(2, 4), torch.ones(1, 4), torch.ones(4), 1e-6)
    with pytest.raises(ValueError, match="x must be"):
        rotary_embedding(torch.ones(2, 1, 6), torch.ones(2, 6), torch.ones(2, 6))
    with pytest.raises(ValueError, match="equal parts"):
        silu_and_mul(torch.ones(2, 3))
