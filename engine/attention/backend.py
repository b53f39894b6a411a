"""What an attention backend is: three questions that a model asks of whoever attends for it.

::

    once             kv_cache_shapes    how are keys and values of a block laid out?
    every step       plan               who reads and writes what?              per KV cache group, from the lengths
    every layer      attend             write this step's keys and values, attend over all

A plan depends on no layer, so whatever can be worked out from the lengths of a step is worked out once, there.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor


class AttentionSpec(NamedTuple):
    """What the attention layers of a model have in common."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    block_size: int
    dtype: torch.dtype
    """Of queries, keys, values and caches."""
    device: torch.device


class AttentionInputs(NamedTuple):
    """A step as one KV cache group sees it; all integers."""

    block_tables: Tensor
    """[num_requests, max_blocks] int32; what follows a request's last block means nothing."""
    query_start_loc: Tensor
    """[num_requests + 1] int64: request r owns queries query_start_loc[r] : query_start_loc[r + 1]."""
    seq_lens: Tensor
    """[num_requests] int64: keys of each request, those of this step included."""
    slot_mapping: Tensor
    """[num_tokens] int64: block × block_size + offset where each token's keys and values go; -1: nowhere."""


Plan = TypeVar("Plan")


class AttentionBackend(Protocol[Plan]):
    """Attends over the paged cache of one model.

    Built from an `AttentionSpec`. A backend beside the protocol has a static method
    `why_unavailable(spec: AttentionSpec) -> str | None`: why it cannot serve such a model here, which the registry
    asks before it builds one.
    """

    name: str
    """As the registry knows it."""
    captures_decodes: bool
    """A CUDA graph of a step of decodes, recorded over a plan, stays right when the contents of the device's tensors
    change: the kernels read lengths, blocks and slots there, and the plan decides nothing by them."""

    def kv_cache_shapes(self, num_blocks: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of one layer's key cache and value cache; axis 0 is the block, so that a block can be moved whole."""

    def plan(self, host: AttentionInputs, device: AttentionInputs, sliding_window: int | None) -> Plan:
        """Lay out the attention of a step for the layers of one KV cache group.

        Args:
            host: the step's tensors where Python can read them without waiting.
            device: the same numbers where the kernels read them; on a CPU the very same tensors.
            sliding_window: keys that a query sees, itself included; None: all before it.
        """

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        plan: Plan,
        scale: float,
    ) -> Tensor:
        """Write the step's keys and values into the cache, then attend over it.

        Args:
            query: [num_tokens, num_heads, head_size]; rows may be strided.
            key, value: [num_tokens, num_kv_heads, head_size]; rows may be strided.
            key_cache, value_cache: of the shapes of `kv_cache_shapes`, contiguous.
            plan: of the layer's KV cache group.
            scale: factor on the scores.

        Returns:
            [num_tokens, num_heads, head_size], contiguous.
        """
