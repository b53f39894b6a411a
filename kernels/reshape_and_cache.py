"""Write a step's keys and values into the paged cache.

Token t goes to *slot* `slot_mapping[t] = block × block_size + offset`, in every head::

    key_cache[slot // block_size, h, slot % block_size] = key[t, h]

The places depend on no layer, so `slot_rows` works them out once a step and `reshape_and_cache` uses them in each.
"""

from __future__ import annotations

import torch
from torch import Tensor


def slot_rows(slot_mapping: Tensor, num_kv_heads: int, block_size: int) -> Tensor:
    """Where the slots are in a cache seen as a list of rows of `head_size` elements.

    Args:
        slot_mapping: [num_tokens] int64, each in [0, num_blocks × block_size), no two alike.

    Returns:
        [num_tokens × num_kv_heads] int64: the row of each token and head, (block × num_kv_heads + h) × block_size +
        offset.
    """
    block = torch.div(slot_mapping, block_size, rounding_mode="floor")
    first_head = block * (num_kv_heads * block_size) + (slot_mapping - block * block_size)
    heads = torch.arange(num_kv_heads, device=slot_mapping.device) * block_size
    return (first_head[:, None] + heads).flatten()


def reshape_and_cache(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, rows: Tensor) -> None:
    """Scatter keys and values into their slots, in place.

    Args:
        key, value: [num_tokens, num_kv_heads, head_size].
        key_cache, value_cache: [num_blocks, num_kv_heads, block_size, head_size], contiguous.
        rows: [num_tokens × num_kv_heads] int64, from `slot_rows`.

    Raises:
        ValueError: shapes that contradict each other.
        IndexError: a slot outside the cache (on the CPU).
    """
    _check_shapes(key, value, key_cache, value_cache, rows)
    head_size = key.shape[-1]
    key_cache.view(-1, head_size).index_copy_(0, rows, key.reshape(-1, head_size))
    value_cache.view(-1, head_size).index_copy_(0, rows, value.reshape(-1, head_size))


def _check_shapes(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, rows: Tensor) -> None:
    if key.dim() != 3 or key.shape != value.shape or rows.shape != (key.shape[0] * key.shape[1],):
        raise ValueError(
            "key and value must be [num_tokens, num_kv_heads, head_size] and rows [num_tokens × num_kv_heads], got "
            f"{list(key.shape)}, {list(value.shape)} and {list(rows.shape)}."
        )
    if key_cache.dim() != 4 or key_cache.shape != value_cache.shape or key_cache.shape[1::2] != key.shape[1:]:
        raise ValueError(
            f"key_cache and value_cache must be [num_blocks, {key.shape[1]}, block_size, {key.shape[2]}], "
            f"got {list(key_cache.shape)} and {list(value_cache.shape)}."
        )
