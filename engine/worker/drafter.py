"""The drafter that `speculative_config` asks for."""

from __future__ import annotations

import msgspec
import torch

from engine.config import EngineConfig, SpeculativeConfig
from engine.errors import ConfigError
from engine.models.architecture import Architecture, read_architecture
from engine.models.store import resolve_model
from engine.worker.load_decoder import LoadedDecoder, load_decoder

#: Methods that there is a drafter for.
METHODS = ("ngram", "draft_model")


def require_known_method(speculative: SpeculativeConfig | None) -> None:
    """Refuse a method that nobody here drafts by.

    Raises:
        ConfigError: with the methods that there are.
    """
    if speculative is not None and speculative.method not in METHODS:
        raise ConfigError(f"There is no drafter for the method {speculative.method}: use {' or '.join(METHODS)}.")


def load_draft_model(
    speculative: SpeculativeConfig,
    target: Architecture,
    config: EngineConfig,
    dtype: torch.dtype,
    device: torch.device,
    max_model_len: int,
) -> LoadedDecoder:
    """Load the model that drafts, or its first layers.

    Raises:
        ModelError: there is no such model, or it is damaged or too large.
        ConfigError: it does not fit the target: another vocabulary, too few positions, sliding windows in either.
    """
    assert speculative.model is not None
    needs_weights = config.model.load_format != "dummy"
    folder = resolve_model(speculative.model, needs_weights=needs_weights)
    architecture = read_architecture(folder)
    _require_fitting(architecture, target, speculative.model, max_model_len)
    num_layers = speculative.num_draft_layers or architecture.num_layers
    if num_layers > architecture.num_layers:
        raise ConfigError(f"num_draft_layers={num_layers} is more than the {architecture.num_layers} layers there are.")
    first_layers = num_layers < architecture.num_layers
    if first_layers:
        windows = architecture.sliding_windows[:num_layers]
        architecture = msgspec.structs.replace(architecture, num_layers=num_layers, sliding_windows=windows)
    return load_decoder(architecture, folder, config, dtype, device, max_model_len, first_layers=first_layers)


def _require_fitting(drafter: Architecture, target: Architecture, name: str, max_model_len: int) -> None:
    if drafter.vocab_size != target.vocab_size:
        raise ConfigError(
            f"The draft model must have the vocabulary of the model, {target.vocab_size} tokens, but {name} has "
            f"{drafter.vocab_size}."
        )
    if drafter.max_position_embeddings < max_model_len:
        raise ConfigError(
            f"The draft model {name} knows {drafter.max_position_embeddings} positions: lower max_model_len, which is "
            f"{max_model_len}, to that."
        )
    if any(window is not None for window in (*drafter.sliding_windows, *target.sliding_windows)):
        raise ConfigError("The method draft_model needs two models of full attention; one here has sliding windows.")
