"""A model on its device: decoder, weights, and who attends for it; the same steps for the model and for its drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from engine.attention.backend import AttentionBackend, AttentionSpec
from engine.attention.registry import make_backend
from engine.config import EngineConfig
from engine.models.architecture import Architecture
from engine.models.causal_lm import CausalLM
from engine.models.decoder import Decoder
from engine.models.loading import fill_with_noise, load_weights
from engine.models.packed_decoder import PackedDecoder
from engine.worker.compilation import compile_layers
from engine.worker.placement import require_quantizable, require_room_for_weights


class LoadedDecoder(NamedTuple):
    """A model that can run once its KV cache is bound."""

    decoder: CausalLM
    backend: AttentionBackend[Any]
    num_parameters: int


def load_decoder(
    architecture: Architecture,
    folder: Path,
    config: EngineConfig,
    dtype: torch.dtype,
    device: torch.device,
    num_positions: int,
    *,
    first_layers: bool = False,
) -> LoadedDecoder:
    """Build a decoder and fill it.

    Args:
        architecture: its shape.
        folder: of the checkpoint.
        config: attention backend, quantization, load_format and compilation.
        dtype: of weights and KV cache.
        device: where it will run.
        num_positions: positions that it must be able to tell apart.
        first_layers: it is the beginning of a checkpoint with more layers.

    Raises:
        ModelError: a damaged checkpoint, or weights that do not fit.
        ConfigError: an attention backend that cannot serve the model, or weights that cannot be quantized.
    """
    spec = AttentionSpec(
        num_heads=architecture.num_heads,
        num_kv_heads=architecture.num_kv_heads,
        head_size=architecture.head_size,
        block_size=config.cache.block_size,
        dtype=dtype,
        device=device,
    )
    backend = make_backend(config.execution.attention_backend, spec)
    require_quantizable(config.model.quantization, architecture, backend.name)
    with torch.device("meta"):
        num_parameters = Decoder(architecture, 1, dtype).num_parameters()
    require_room_for_weights(num_parameters, dtype, device)
    with torch.device(device):
        decoder = Decoder(architecture, num_positions, dtype).eval()
    if config.model.load_format == "dummy":
        fill_with_noise(decoder)
    else:
        load_weights(decoder, folder, first_layers=first_layers)
    if backend.name == "cpu":
        return LoadedDecoder(PackedDecoder(decoder, config.model.quantization), backend, num_parameters)
    if config.execution.compilation_level:
        compile_layers(decoder)
    return LoadedDecoder(decoder, backend, num_parameters)
