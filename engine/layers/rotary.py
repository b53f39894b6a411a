"""The angles of the rotary position embedding."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.models.architecture import LinearScaling, Llama3Scaling, RopeScaling


def inverse_frequencies(head_size: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """Radians per position of each plane i, theta ** (-2i / head_size) before scaling: [head_size / 2] float32."""
    exponents = torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size
    frequencies = 1.0 / (theta**exponents)
    match scaling:
        case None:
            return frequencies
        case LinearScaling(factor=factor):
            return frequencies / factor
        case Llama3Scaling():
            return _llama3(frequencies, scaling)


def cos_sin_table(frequencies: Tensor, num_positions: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position's angles, each [num_positions, head_size / 2] in `dtype`."""
    angles = torch.outer(torch.arange(num_positions).float(), frequencies)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """The rule published with Llama 3.1's code: the number of turns within the original context decides."""
    context = scaling.original_max_position_embeddings
    wavelengths = 2 * math.pi / frequencies
    turns = context / wavelengths
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blended = (1 - blend) * frequencies / scaling.factor + blend * frequencies
    longest, shortest = context / scaling.low_freq_factor, context / scaling.high_freq_factor
    scaled = torch.where(wavelengths > longest, frequencies / scaling.factor, frequencies)
    between = (wavelengths >= shortest) & (wavelengths <= longest)
    return torch.where(between, blended, scaled)
