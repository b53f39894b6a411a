"""The packed matrix product: right in every format, and the same bits for a row wherever it stands."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.cpu.operations import embedding, linear
from kernels.cpu.packing import GROUP_SIZE, PackedMatrix, Quantization, interleave_gate_up, panel_columns

FEATURES = 192
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FORMATS: list[tuple[torch.dtype, Quantization | None]] = [
    *((dtype, None) for dtype in DTYPES),
    (torch.float32, "int8"),
    (torch.bfloat16, "int4"),
]


def unpacked(matrix: PackedMatrix) -> Tensor:
    """W as the kernels see it."""
    return embedding(torch.arange(matrix.columns), matrix)


def seen(x: Tensor, quantization: Quantization | None) -> Tensor:
    """X as a product in that format sees it: 4-bit weights meet 8-bit rows."""
    if quantization != "int4":
        return x
    groups = x.unflatten(1, (-1, GROUP_SIZE[quantization]))
    steps = groups.abs().amax(-1, keepdim=True) / 127
    return ((groups / torch.where(steps == 0, 1.0, steps)).round() * steps).flatten(1)


@pytest.mark.parametrize(("dtype", "quantization"), FORMATS)
@pytest.mark.parametrize("columns", [1, 16, 75, 128])
@pytest.mark.parametrize("rows", [1, 2, 5, 7, 13, 40, 230])
def test_product(rows: int, columns: int, dtype: torch.dtype, quantization: Quantization | None, threads: int) -> None:
    weight, bias, x = torch.randn(columns, FEATURES).to(dtype), torch.randn(columns), torch.randn(rows, FEATURES)
    matrix = PackedMatrix(weight, bias, quantization)
    x[0, : GROUP_SIZE["int4"]] = 0  # a group of nothing has no scale
    expected = seen(x, quantization).double() @ unpacked(matrix).double().T + bias
    torch.testing.assert_close(linear(x, matrix).double(), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "quantization"), FORMATS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_so_and_in_its_row(
    value: float, dtype: torch.dtype, quantization: Quantization | None
) -> None:
    matrix, x = PackedMatrix(torch.randn(40, FEATURES).to(dtype), None, quantization), torch.randn(9, FEATURES)
    expected = linear(x, matrix)
    x[3, 70] = value
    y = linear(x, matrix)
    assert not bool(y[3].isfinite().any())
    assert torch.equal(torch.cat((y[:3], y[4:])), torch.cat((expected[:3], expected[4:])))


def test_four_bit_weights_lose_little_to_rounded_rows() -> None:
    matrix, x = PackedMatrix(torch.randn(64, FEATURES), None, "int4"), torch.randn(50, FEATURES)
    exact = x.double() @ unpacked(matrix).double().T
    error = (linear(x, matrix) - exact).norm() / exact.norm()
    assert 1e-4 < float(error) < 0.01


@pytest.mark.parametrize("dtype", DTYPES)
def test_unquantised_weights_keep_every_bit(dtype: torch.dtype) -> None:
    weight = torch.randn(75, FEATURES).to(dtype)
    assert torch.equal(unpacked(PackedMatrix(weight)), weight.float())


@pytest.mark.parametrize(("dtype", "quantization"), FORMATS)
def test_a_row_has_the_same_bits_in_every_batch_and_on_any_number_of_threads(
    dtype: torch.dtype, quantization: Quantization | None
) -> None:
    matrix = PackedMatrix(torch.randn(75, FEATURES).to(dtype), None, quantization)
    x = torch.randn(600, FEATURES)
    before = torch.get_num_threads()
    alone = linear(x[77:78], matrix)[0]
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for rows in (78, 79, 83, 96, 150, 400, 600):
            assert torch.equal(linear(x[:rows], matrix)[77], alone), (threads, rows)
    torch.set_num_threads(before)


@pytest.mark.parametrize(("quantization", "steps"), [("int8", 254), ("int4", 15)])
def test_quantised_weights_are_within_half_a_step(quantization: Quantization, steps: int) -> None:
    weight = torch.randn(40, FEATURES)
    group = weight.unflatten(1, (-1, GROUP_SIZE[quantization]))
    span = 2 * group.abs().amax(-1) if quantization == "int8" else group.amax(-1) - group.amin(-1)
    error = (unpacked(PackedMatrix(weight, None, quantization)) - weight).unflatten(1, group.shape[1:]).abs().amax(-1)
    # Scales are rounded to float16, which moves the ends of the range a little.
    assert bool((error <= 0.5 * span / steps + 1e-3 * span).all())
    assert float(error.max()) > 0.3 * float((span / steps).max()), "nothing was rounded"


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_group_of_equal_weights_survives_quantisation(quantization: Quantization) -> None:
    for value in (0.0, 0.5, -2.0):
        weight = torch.full((3, FEATURES), value)
        torch.testing.assert_close(unpacked(PackedMatrix(weight, None, quantization)), weight, atol=2e-3, rtol=0)


def test_gate_and_up_lie_side_by_side() -> None:
    half = panel_columns() // 2
    gate, up = torch.arange(20.0)[:, None], 100 + torch.arange(20.0)[:, None]
    mixed = interleave_gate_up(torch.cat((gate, up))).flatten()
    assert len(mixed) % panel_columns() == 0
    assert torch.equal(mixed[:half], gate.flatten()[:half])
    assert torch.equal(mixed[half : 2 * half], up.flatten()[:half])
    assert sorted(mixed[mixed > 0].tolist()) == [*range(1, 20), *range(100, 120)]


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(ValueError, match="must be a float32, float16 or bfloat16 matrix"):
        PackedMatrix(torch.zeros(4, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match="int4 needs a multiple of 32 input features, got 48"):
        PackedMatrix(torch.zeros(4, 48), None, "int4")
    too_large: list[Quantization] = ["int8", "int4"]
    for quantization in too_large:
        with pytest.raises(
            ValueError, match=f"{quantization} keeps scales in float16, and these weights are too large"
        ):
            PackedMatrix(torch.full((4, FEATURES), 1e9), None, quantization)
    with pytest.raises(ValueError, match=r"x must be float32 \[rows, 192\]"):
        linear(torch.zeros(2, 100), PackedMatrix(torch.zeros(4, FEATURES)))
