"""The backend `triton`: this project's own kernels for GPUs."""

from __future__ import annotations

import importlib.util
import os
from typing import NamedTuple

import torch
from torch import Tensor

from engine.attention.backend import AttentionInputs, AttentionSpec

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_MOST_HEAD_SIZE = 256


class TritonPlan(NamedTuple):
    """Where the kernels read the step's lengths, and the bounds that their grids follow from."""

    device: AttentionInputs
    max_query_len: int
    max_seq_len: int
    sliding_window: int | None


class TritonBackend:
    """Keys and values as [num_blocks, num_kv_heads, block_size, head_size]."""

    name = "triton"
    captures_decodes = True

    def __init__(self, spec: AttentionSpec) -> None:
        self.spec = spec

    @staticmethod
    def why_unavailable(spec: AttentionSpec) -> str | None:
        """What its kernels cannot run on or with; None if they can."""
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed"
        if spec.device.type != "cuda" and not _interpreted():
            return "its kernels run on a GPU, or under TRITON_INTERPRET=1"
        if spec.dtype not in _DTYPES or spec.head_size > _MOST_HEAD_SIZE:
            return f"its kernels take float16, bfloat16 or float32 and heads of at most {_MOST_HEAD_SIZE}"
        return None

    def kv_cache_shapes(self, num_blocks: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """See `AttentionBackend`."""
        spec = self.spec
        shape = (num_blocks, spec.num_kv_heads, spec.block_size, spec.head_size)
        return shape, shape

    def plan(self, host: AttentionInputs, device: AttentionInputs, sliding_window: int | None) -> TritonPlan:
        """See `AttentionBackend`."""
        max_query_len = int(host.query_start_loc.diff().max())
        return TritonPlan(device, max_query_len, int(host.seq_lens.max()), sliding_window)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        plan: TritonPlan,
        scale: float,
    ) -> Tensor:
        """See `AttentionBackend`."""
        # Imported at the first use: it imports triton, and the registry looks at this module on every machine.
        from kernels.paged_attention.launch import paged_attention_triton
        from kernels.reshape_and_cache import reshape_and_cache_triton

        inputs = plan.device
        reshape_and_cache_triton(key, value, key_cache, value_cache, inputs.slot_mapping)
        return paged_attention_triton(
            query,
            key_cache,
            value_cache,
            inputs.block_tables,
            inputs.query_start_loc,
            inputs.seq_lens,
            max_query_len=plan.max_query_len,
            max_seq_len=plan.max_seq_len,
            scale=scale,
            sliding_window=plan.sliding_window,
        )


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"
