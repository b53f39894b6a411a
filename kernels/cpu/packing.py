"""Weights into the panels that `weights.h` describes: as they are, or in 8 or 4 bits.

Quantised weights share a scale in groups of neighbouring input features of one column:

- int8: w ≈ q · scale, q in −127…127, scale = the group's largest |w| / 127
- int4: w ≈ q · scale + minimum, q in 0…15, scale = (largest − least) / 15

Scales and minima are float16, and q is rounded after they are, so that what they lose is made up for.
"""

from __future__ import annotations

import ctypes
from typing import Literal

import torch
from torch import Tensor

from kernels.cpu import library
from kernels.cpu.memory import lasting

Quantization = Literal["int8", "int4"]

#: Input features that share a scale.
GROUP_SIZE = {"int8": 64, "int4": 32}

_FORMATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_QUANTIZED_FORMATS = {"int8": 3, "int4": 4}


class Matrix(ctypes.Structure):
    """`Matrix` of weights.h."""

    _fields_ = (
        ("panels", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("columns", ctypes.c_int32),
        ("features", ctypes.c_int32),
        ("format", ctypes.c_int32),
        ("group", ctypes.c_int32),
    )


class PackedMatrix:
    """A weight matrix in panels, as the kernels read it.

    Args:
        weight: [columns, features], float32, float16 or bfloat16.
        bias: [columns] or None.
        quantization: the bits to keep of each weight; None: all.

    Raises:
        ValueError: another dtype, features that do not divide into groups, or weights too large to be quantised.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, quantization: Quantization | None = None) -> None:
        if weight.dim() != 2 or weight.dtype not in _FORMATS:
            raise ValueError(f"a weight must be a float32, float16 or bfloat16 matrix, got {weight.dtype}.")
        self.columns, self.features = weight.shape
        self.scales: Tensor | None = None
        if quantization is None:
            format_, group = _FORMATS[weight.dtype], self.features
            self.panels = _interleaved(weight) if weight.dtype == torch.bfloat16 else _panels(weight)
        else:
            format_, group = _QUANTIZED_FORMATS[quantization], GROUP_SIZE[quantization]
            if self.features % group:
                raise ValueError(f"{quantization} needs a multiple of {group} input features, got {self.features}.")
            self.panels, self.scales = (_int8 if quantization == "int8" else _int4)(weight, group)
            if not bool(self.scales.isfinite().all()):
                raise ValueError(f"{quantization} keeps scales in float16, and these weights are too large for that.")
            self.scales = lasting(self.scales)
        self.panels = lasting(self.panels)
        self.bias = None if bias is None else _padded(bias.float()).contiguous()
        self.struct = Matrix(
            self.panels.data_ptr(),
            _pointer(self.scales),
            _pointer(self.bias),
            self.columns,
            self.features,
            format_,
            group,
        )

    @property
    def num_bytes(self) -> int:
        """Bytes that one product reads of it."""
        return sum(
            part.numel() * part.element_size() for part in (self.panels, self.scales, self.bias) if part is not None
        )


def panel_columns() -> int:
    """Output columns of a panel on this processor: two vectors."""
    return int(library.load().panel_columns())


def interleave_gate_up(gate_up: Tensor) -> Tensor:
    """Reorder stacked gate and up projections so that each panel holds the same columns of both, half and half.

    Args:
        gate_up: [2 × intermediate, ...], all of the gate first.

    Returns:
        [2 × intermediate rounded up to half a panel, ...], padded with zeros.
    """
    lanes = panel_columns() // 2
    gate, up = (_padded(part, lanes).unflatten(0, (-1, lanes)) for part in gate_up.chunk(2))
    return torch.stack((gate, up), dim=1).flatten(0, 2)


def _padded(x: Tensor, multiple: int | None = None) -> Tensor:
    """`x` with rows of zeros behind it, up to a multiple of a panel's columns."""
    missing = -x.shape[0] % (multiple or panel_columns())
    return torch.cat((x, x.new_zeros(missing, *x.shape[1:]))) if missing else x


def _panels(weight: Tensor) -> Tensor:
    """[columns, features] → [panels, features, panel]."""
    return _padded(weight).unflatten(0, (-1, panel_columns())).transpose(1, 2)


def _interleaved(weight: Tensor) -> Tensor:
    """As `_panels`, with columns 0, n, 1, n + 1, … of a panel of 2n."""
    halves = _padded(weight).unflatten(0, (-1, 2, panel_columns() // 2))
    return halves.permute(0, 3, 2, 1)


def _int8(weight: Tensor, group: int) -> tuple[Tensor, Tensor]:
    panels = _panels(weight.float()).unflatten(1, (-1, group))  # [panels, groups, group, panel]
    scales = (panels.abs().amax(dim=2) / 127).half()
    integers = (panels / _nonzero(scales)[:, :, None]).round_().clamp_(-127, 127).to(torch.int8)
    return integers, scales


def _int4(weight: Tensor, group: int) -> tuple[Tensor, Tensor]:
    panels = _panels(weight.float()).unflatten(1, (-1, group))
    least, largest = panels.aminmax(dim=2)
    minima = least.half()
    scales = ((largest - minima.float()) / 15).half()
    integers = ((panels - minima.float()[:, :, None]) / _nonzero(scales)[:, :, None]).round_().clamp_(0, 15).byte()
    # [panels, quads of features, 4, halves, lanes]: the halves share a byte, the features of a quad lie side by side.
    quads = integers.flatten(1, 2).unflatten(1, (-1, 4)).unflatten(3, (2, -1))
    both = quads[:, :, :, 0] | quads[:, :, :, 1] << 4
    return both.transpose(2, 3), torch.stack((scales, minima), dim=2)


def _nonzero(scales: Tensor) -> Tensor:
    """float32; a group of equal weights has scale 0, and nothing to divide."""
    return torch.where(scales == 0, 1.0, scales.float())


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
