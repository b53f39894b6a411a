"""The drafter that `speculative_config` asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from engine.attention.backend import AttentionBackend, AttentionSpec
from engine.attention.registry import make_backend
from engine.config import EngineConfig, SpeculativeConfig
from engine.errors import ConfigError
from engine.models.architecture import Architecture, read_architecture
from engine.models.causal_lm import CausalLM
from engine.models.eagle_head import load_eagle_head
from engine.models.medusa_head import load_medusa_head
from engine.models.store import resolve_draft_head, resolve_model
from engine.spec_decode.draft_model import DraftModelProposer
from engine.spec_decode.eagle import EagleProposer
from engine.spec_decode.medusa import MedusaProposer
from engine.spec_decode.ngram_proposer import NgramProposer
from engine.spec_decode.proposer import Proposer
from engine.worker.input_buffers import DeviceInputs
from engine.worker.load_decoder import LoadedDecoder, load_decoder
from engine.worker.step_inputs import StepInputs

Place = Callable[[StepInputs, int], DeviceInputs]
"""Where the inputs of a pass go."""


class LoadedDrafter(NamedTuple):
    """A drafter that can draft once its KV cache is bound."""

    decoder: CausalLM | None
    """What needs a KV cache of its own; None: nothing does."""
    backend: AttentionBackend[Any] | None
    """Who attends for it."""
    proposer: Callable[[Place], Proposer]
    """Makes the drafter."""


class Target(NamedTuple):
    """The model that is drafted for."""

    decoder: CausalLM
    backend: AttentionBackend[Any]
    config: EngineConfig
    max_model_len: int

    @property
    def architecture(self) -> Architecture:
        return self.decoder.architecture

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.dtype

    @property
    def device(self) -> torch.device:
        return self.decoder.device


def load_drafter(speculative: SpeculativeConfig, target: Target) -> LoadedDrafter:
    """Load who drafts.

    Raises:
        ModelError: there is no such model or head, or it is damaged, too large, or made for another model.
        ConfigError: it does not fit the target: another vocabulary, too few positions, sliding windows in either; or
            fewer heads than there are to be drafts.
    """
    if speculative.method == "ngram":
        shortest, longest = speculative.prompt_lookup
        ngram = NgramProposer(shortest, longest, speculative.prompt_lookup_match)
        return LoadedDrafter(None, None, lambda _: ngram)
    if speculative.method == "medusa":
        return _load_medusa(speculative, target)
    return _load_eagle(speculative, target) if speculative.method == "eagle" else _load_draft_model(speculative, target)


def _head_folder(speculative: SpeculativeConfig, target: Target) -> Path:
    """The head that is named, or else the one that goes by the model's own name."""
    return resolve_draft_head(speculative.model or f"{target.config.model.model}-{speculative.method}")


def _load_medusa(speculative: SpeculativeConfig, target: Target) -> LoadedDrafter:
    packed = target.backend.name == "cpu"
    folder = _head_folder(speculative, target)
    head = load_medusa_head(folder, target.architecture, target.dtype, target.device, packed=packed)
    if speculative.num_speculative_tokens > head.num_heads:
        raise ConfigError(
            f"num_speculative_tokens must be at most {head.num_heads}, the number of heads in {folder.name}, "
            f"got {speculative.num_speculative_tokens}."
        )
    medusa = MedusaProposer(head, target.architecture.vocab_size, speculative.draft_confidence_threshold)
    return LoadedDrafter(None, None, lambda _: medusa)


def _load_eagle(speculative: SpeculativeConfig, target: Target) -> LoadedDrafter:
    if any(window is not None for window in target.architecture.sliding_windows):
        raise ConfigError("The method eagle needs a model of full attention; this one has sliding windows.")
    head = load_eagle_head(_head_folder(speculative, target), target.decoder, target.max_model_len)
    architecture = head.decoder.architecture
    spec = AttentionSpec(
        num_heads=architecture.num_heads,
        num_kv_heads=architecture.num_kv_heads,
        head_size=architecture.head_size,
        block_size=target.config.cache.block_size,
        dtype=target.dtype,
        device=target.device,
    )
    backend = make_backend(target.config.execution.attention_backend, spec)
    vocab_size, threshold = target.architecture.vocab_size, speculative.draft_confidence_threshold
    return LoadedDrafter(
        head.decoder, backend, lambda place: EagleProposer(head, backend, place, vocab_size, threshold)
    )


def _load_draft_model(speculative: SpeculativeConfig, target: Target) -> LoadedDrafter:
    decoder, backend, _ = _read_draft_model(
        speculative, target.architecture, target.config, target.dtype, target.device, target.max_model_len
    )
    threshold = speculative.draft_confidence_threshold
    return LoadedDrafter(decoder, backend, lambda place: DraftModelProposer(decoder, backend, place, threshold))


def _read_draft_model(
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
