"""The backend `flash_attn`: the package of that name (FlashAttention 2), where it is installed."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

import torch
from torch import Tensor

from engine.attention.backend import AttentionInputs, AttentionSpec

#: Its kernels read a paged cache in steps of so many tokens.
_BLOCK_TOKENS = 256
_MOST_HEAD_SIZE = 256


class FlashAttnPlan(NamedTuple):
    """The step's tensors as its kernels take them."""

    slots: Tensor
    """[num_tokens] int64."""
    block_tables: Tensor
    """[num_requests, max_blocks] int32."""
    cu_seqlens_q: Tensor
    """[num_requests + 1] int32."""
    cu_seqlens_k: Tensor
    """[num_requests + 1] int32: how many keys there are before each request's first."""
    max_seqlen_q: int
    max_seqlen_k: int
    window: tuple[int, int]
    """Keys to the left and right of a query; -1: no limit."""


class FlashAttnBackend:
    """Keys and values as [num_blocks, block_size, num_kv_heads, head_size]."""

    name = "flash_attn"
    captures_decodes = False

    def __init__(self, spec: AttentionSpec) -> None:
        self.spec = spec

    @staticmethod
    def why_unavailable(spec: AttentionSpec) -> str | None:
        """What its kernels cannot run on or with; None if they can."""
        if spec.device.type != "cuda":
            return "it runs on CUDA only"
        if importlib.util.find_spec("flash_attn") is None:
            return "flash_attn is not installed"
        if spec.dtype not in (torch.float16, torch.bfloat16) or spec.head_size > _MOST_HEAD_SIZE:
            return f"it takes float16 or bfloat16 and heads of at most {_MOST_HEAD_SIZE}"
        if spec.block_size % _BLOCK_TOKENS:
            return f"it needs a block_size that {_BLOCK_TOKENS} divides, not {spec.block_size}"
        return None

    def kv_cache_shapes(self, num_blocks: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """See `AttentionBackend`."""
        spec = self.spec
        shape = (num_blocks, spec.block_size, spec.num_kv_heads, spec.head_size)
        return shape, shape

    def plan(self, host: AttentionInputs, device: AttentionInputs, sliding_window: int | None) -> FlashAttnPlan:
        """See `AttentionBackend`."""
        seq_lens = device.seq_lens.to(torch.int32)
        return FlashAttnPlan(
            slots=device.slot_mapping,
            block_tables=device.block_tables,
            cu_seqlens_q=device.query_start_loc.to(torch.int32),
            cu_seqlens_k=torch.nn.functional.pad(seq_lens.cumsum(0, dtype=torch.int32), (1, 0)),
            max_seqlen_q=int(host.query_start_loc.diff().max()),
            max_seqlen_k=int(host.seq_lens.max()),
            window=(-1, -1) if sliding_window is None else (sliding_window - 1, 0),
        )

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        plan: FlashAttnPlan,
        scale: float,
    ) -> Tensor:
        """See `AttentionBackend`."""
        from flash_attn import flash_attn_varlen_func

        for cache, new in ((key_cache, key), (value_cache, value)):
            cache.view(-1, *cache.shape[2:]).index_copy_(0, plan.slots, new)
        output: Tensor = flash_attn_varlen_func(
            query,
            key_cache,
            value_cache,
            cu_seqlens_q=plan.cu_seqlens_q,
            cu_seqlens_k=plan.cu_seqlens_k,
            max_seqlen_q=plan.max_seqlen_q,
            max_seqlen_k=plan.max_seqlen_k,
            softmax_scale=scale,
            causal=True,
            window_size=plan.window,
            block_table=plan.block_tables,
        )
        return output
