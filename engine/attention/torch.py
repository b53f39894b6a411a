"""The backend `torch`: the reference implementations, in plain torch operations. Runs everywhere."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from engine.attention.backend import AttentionInputs, AttentionSpec
from kernels.paged_attention import AttentionPlan, paged_attention, plan_attention
from kernels.reshape_and_cache import reshape_and_cache, slot_rows


class TorchPlan(NamedTuple):
    """Where a step writes its keys and values, and how its queries find theirs."""

    slot_rows: Tensor
    """[num_tokens × num_kv_heads] int64."""
    attention: AttentionPlan


class TorchBackend:
    """Keys and values as [num_blocks, num_kv_heads, block_size, head_size]."""

    name = "torch"
    captures_decodes = False

    def __init__(self, spec: AttentionSpec) -> None:
        self.spec = spec

    @staticmethod
    def why_unavailable(spec: AttentionSpec) -> str | None:
        """Never: torch is what all the rest stands on."""
        return None

    def kv_cache_shapes(self, num_blocks: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """See `AttentionBackend`."""
        spec = self.spec
        shape = (num_blocks, spec.num_kv_heads, spec.block_size, spec.head_size)
        return shape, shape

    def plan(self, host: AttentionInputs, device: AttentionInputs, sliding_window: int | None) -> TorchPlan:
        """See `AttentionBackend`."""
        spec = self.spec
        attention = plan_attention(
            host.block_tables,
            host.query_start_loc,
            host.seq_lens,
            block_size=spec.block_size,
            num_kv_heads=spec.num_kv_heads,
            dtype=spec.dtype,
            device=spec.device,
            sliding_window=sliding_window,
        )
        return TorchPlan(slot_rows(device.slot_mapping, spec.num_kv_heads, spec.block_size), attention)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        plan: TorchPlan,
        scale: float,
    ) -> Tensor:
        """See `AttentionBackend`."""
        reshape_and_cache(key, value, key_cache, value_cache, plan.slot_rows)
        return paged_attention(query, key_cache, value_cache, plan.attention, scale)
