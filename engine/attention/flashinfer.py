"""The backend `flashinfer`: the package of that name, where it is installed."""

from __future__ import annotations

import importlib.util
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.attention.backend import AttentionInputs, AttentionSpec
from kernels.reshape_and_cache import reshape_and_cache, slot_rows

#: What FlashInfer recommends for its split contexts.
_WORKSPACE_BYTES = 128 << 20


class FlashInferPlan(NamedTuple):
    """Where a step writes its keys and values, and the wrapper that has been told of the step."""

    slot_rows: Tensor
    """[num_tokens × num_kv_heads] int64."""
    wrapper: Any


class FlashInferBackend:
    """Keys and values as [num_blocks, num_kv_heads, block_size, head_size]; FlashInfer calls that HND.

    Its wrapper for prompts takes decodes as well. A wrapper keeps what it was told of a step and is slow to make, so
    each KV cache group has one of its own.
    """

    name = "flashinfer"
    captures_decodes = False

    def __init__(self, spec: AttentionSpec) -> None:
        self.spec = spec
        self._scale = spec.head_size**-0.5
        self._wrappers: dict[int, Any] = {}
        """By the address of a group's block tables, which stays the same."""
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=spec.device)

    @staticmethod
    def why_unavailable(spec: AttentionSpec) -> str | None:
        """What its kernels cannot run on or with; None if they can."""
        if spec.device.type != "cuda":
            return "it runs on CUDA only"
        if importlib.util.find_spec("flashinfer") is None:
            return "flashinfer is not installed"
        if spec.dtype not in (torch.float16, torch.bfloat16) or spec.head_size not in (64, 128, 256):
            return "it takes float16 or bfloat16 and heads of 64, 128 or 256"
        return None

    def kv_cache_shapes(self, num_blocks: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """See `AttentionBackend`."""
        spec = self.spec
        shape = (num_blocks, spec.num_kv_heads, spec.block_size, spec.head_size)
        return shape, shape

    def plan(self, host: AttentionInputs, device: AttentionInputs, sliding_window: int | None) -> FlashInferPlan:
        """See `AttentionBackend`."""
        spec = self.spec
        # Pages of the requests one after another, instead of in a table.
        num_pages = (host.seq_lens + spec.block_size - 1) // spec.block_size
        indptr = torch.nn.functional.pad(num_pages.cumsum(0), (1, 0)).to(torch.int32)
        used = torch.arange(host.block_tables.shape[1]) < num_pages[:, None]
        wrapper = self._wrapper(device.block_tables)
        wrapper.plan(
            host.query_start_loc.to(torch.int32),
            indptr,
            host.block_tables[used].to(spec.device),
            ((host.seq_lens - 1) % spec.block_size + 1).to(torch.int32),
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_size,
            spec.block_size,
            causal=True,
            sm_scale=self._scale,
            window_left=-1 if sliding_window is None else sliding_window - 1,
            q_data_type=spec.dtype,
            kv_data_type=spec.dtype,
        )
        return FlashInferPlan(slot_rows(device.slot_mapping, spec.num_kv_heads, spec.block_size), wrapper)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        plan: FlashInferPlan,
        scale: float,
    ) -> Tensor:
        """See `AttentionBackend`.

        Raises:
            ValueError: another scale than head_size ** -0.5, which the step was planned with.
        """
        if not math.isclose(scale, self._scale):
            raise ValueError(f"scale must be head_size ** -0.5 = {self._scale}, got {scale}.")
        reshape_and_cache(key, value, key_cache, value_cache, plan.slot_rows)
        output: Tensor = plan.wrapper.run(query, (key_cache, value_cache))
        return output

    def _wrapper(self, block_tables: Tensor) -> Any:
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper

        place = block_tables.data_ptr()
        if place not in self._wrappers:
            self._wrappers[place] = BatchPrefillWithPagedKVCacheWrapper(self._workspace, kv_layout="HND")
        return self._wrappers[place]
