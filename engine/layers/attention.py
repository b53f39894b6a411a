"""Attention over the paged KV cache, and what a step must know for it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from engine.layers.linear import FusedLinear
from engine.layers.norm import RMSNorm
from engine.models.architecture import Architecture
from kernels.paged_attention import AttentionPlan, paged_attention
from kernels.reshape_and_cache import reshape_and_cache
from kernels.rotary_embedding import rotary_embedding


class AttentionMetadata(NamedTuple):
    """Where the tokens of a step's super-sequence read and write the KV cache; built once per step."""

    slot_rows: tuple[Tensor, ...]
    """Per KV cache group, [num_tokens × num_kv_heads] int64: where each token's keys and values go, from `slot_rows`
    of its slots."""
    plans: tuple[AttentionPlan, ...]
    """Per KV cache group: how the queries find their keys."""


class Attention(nn.Module):
    """Grouped-query attention with rotary positions.

    `bind_kv_cache` gives it the part of the cache that is its own; without one it cannot run.
    """

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
        self.kv_cache: tuple[Tensor, Tensor] | None = None
        self.kv_cache_group = 0
        """Whose block tables and sliding window are the layer's."""

    def bind_kv_cache(self, key_cache: Tensor, value_cache: Tensor, group: int) -> None:
        """Take over the layer's cache: both [num_blocks, num_kv_heads, block_size, head_size]."""
        self.kv_cache = key_cache, value_cache
        self.kv_cache_group = group

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, metadata: AttentionMetadata) -> Tensor:
        """[num_tokens, hidden_size] → [num_tokens, hidden_size]; writes the tokens' keys and values to the cache."""
        if self.kv_cache is None:
            raise RuntimeError("attention runs only after bind_kv_cache.")
        num_tokens = hidden.shape[0]
        qkv = self.qkv_proj(hidden).view(num_tokens, -1, self.head_size)
        rotated = rotary_embedding(self._normed(qkv[:, : self.num_heads + self.num_kv_heads]), cos, sin)
        query, key = rotated.split((self.num_heads, self.num_kv_heads), dim=1)
        reshape_and_cache(key, qkv[:, -self.num_kv_heads :], *self.kv_cache, metadata.slot_rows[self.kv_cache_group])
        attended = paged_attention(query, *self.kv_cache, metadata.plans[self.kv_cache_group], self.scale)
        return self.o_proj(attended.view(num_tokens, -1))

    def _normed(self, query_key: Tensor) -> Tensor:
        if self.q_norm is None or self.k_norm is None:
            return query_key
        query, key = query_key.split((self.num_heads, self.num_kv_heads), dim=1)
        return torch.cat((self.q_norm(query), self.k_norm(key)), dim=1)
