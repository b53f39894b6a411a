"""`CausalLM`: what the worker asks of a model, whichever way its layers are run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

from engine.layers.attention import AttentionMetadata, KVCacheOfLayer
from engine.models.architecture import Architecture


class HasKVCache(Protocol):
    """A layer that a part of the KV cache is bound to."""

    kv_cache: KVCacheOfLayer | None


class CausalLM(Protocol):
    """A causal language model over a paged KV cache: `Decoder`, in torch, or `PackedDecoder`, compiled for a CPU."""

    architecture: Architecture

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights and of the KV cache."""

    @property
    def device(self) -> torch.device:
        """Where it runs."""

    def embed(self, input_ids: Tensor) -> Tensor:
        """[num_tokens] int64 → [num_tokens, hidden_size]."""

    def __call__(
        self, input_ids: Tensor, positions: Tensor, metadata: AttentionMetadata, input_embeds: Tensor | None = None
    ) -> Tensor:
        """Run a super-sequence: hidden states after the last norm, [num_tokens, hidden_size]."""

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden_size] → [rows, vocab_size] float32."""

    def weight_bytes(self) -> int:
        """Bytes of the weights, a tied output head counted once."""

    def attentions(self) -> Iterable[HasKVCache]:
        """What a KV cache is bound to, first layer to last."""
