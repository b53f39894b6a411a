"""Attention over the paged KV cache, and what a step must know for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from engine.attention.backend import AttentionBackend
from engine.layers.linear import FusedLinear
from engine.layers.norm import RMSNorm
from engine.models.architecture import Architecture
from kernels.rotary_embedding import rotary_embedding


@dataclass(slots=True)
class AttentionMetadata:
    """How a step's super-sequence reads and writes the KV cache; built once per step.

    No tuple: torch.compile looks into these, and would generate code anew for every number that it finds.
    """

    plans: tuple[Any, ...]
    """Per KV cache group, as the attention backend made it."""


class KVCacheOfLayer(NamedTuple):
    """One layer's part of the KV cache, and who attends over it."""

    backend: AttentionBackend[Any]
    key_cache: Tensor
    value_cache: Tensor
    """Both in the layout of the backend."""
    group: int
    """The KV cache group whose block tables and sliding window are the layer's."""


class Attention(nn.Module):
    """Grouped-query attention with rotary positions, over the part of the KV cache that is bound to it."""

    def __init__(self, architecture: Architecture, dtype: torch.dtype) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = architecture.num_heads, architecture.num_kv_heads
        self.head_size = architecture.head_size
        self.scale = self.head_size**-0.5
        query_size, kv_size = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        self.qkv_proj = FusedLinear(
            architecture.hidden_size, (query_size, kv_size, kv_size), bias=architecture.qkv_bias, dtype=dtype
        )
        self.o_proj = FusedLinear(query_size, (architecture.hidden_size,), bias=architecture.output_bias, dtype=dtype)
        eps = architecture.rms_norm_eps
        self.q_norm = RMSNorm(self.head_size, eps, dtype) if architecture.qk_norm else None
        self.k_norm = RMSNorm(self.head_size, eps, dtype) if architecture.qk_norm else None
        self.kv_cache: KVCacheOfLayer | None = None
        """Bound once the size of the cache is known; without it attention cannot run."""

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, metadata: AttentionMetadata) -> Tensor:
        """[num_tokens, hidden_size] → [num_tokens, hidden_size]; writes the tokens' keys and values to the cache."""
        num_tokens = hidden.shape[0]
        qkv = self.qkv_proj(hidden).view(num_tokens, -1, self.head_size)
        rotated = rotary_embedding(self._normed(qkv[:, : self.num_heads + self.num_kv_heads]), cos, sin)
        query, key = rotated.split((self.num_heads, self.num_kv_heads), dim=1)
        attended = self.attend(query, key, qkv[:, -self.num_kv_heads :], metadata)
        return self.o_proj(attended.view(num_tokens, -1))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, metadata: AttentionMetadata) -> Tensor:
        """What lies between the projections, as `AttentionBackend.attend`; the one part that depends on lengths."""
        if self.kv_cache is None:
            raise RuntimeError("attention runs only after its KV cache was bound.")
        backend, key_cache, value_cache, group = self.kv_cache
        return backend.attend(query, key, value, key_cache, value_cache, metadata.plans[group], self.scale)

    def _normed(self, query_key: Tensor) -> Tensor:
        if self.q_norm is None or self.k_norm is None:
            return query_key
        query, key = query_key.split((self.num_heads, self.num_kv_heads), dim=1)
        return torch.cat((self.q_norm(query), self.k_norm(key)), dim=1)
