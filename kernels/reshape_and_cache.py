"""Write a step's keys and values into the paged cache.

Token t goes to *slot* `slot_mapping[t] = block × block_size + offset`, in every head::

    key_cache[slot // block_size, h, slot % block_size] = key[t, h]

On a CPU the places are worked out once a step, by `slot_rows`, as they depend on no layer; `reshape_and_cache` uses
them in each. On a GPU that work hides behind the memory, and `reshape_and_cache_triton` takes the slots as they are:
one program writes the heads of one token, or some of them if they are many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.jit import cdiv, jit, next_power_of_2
from kernels.specimen import Specimen

if TYPE_CHECKING:
    import triton.language as tl

#: Elements of the keys that one program holds in registers, with as many of values.
_TILE = 4096


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
    _check_shapes(key, value, key_cache, value_cache)
    if rows.shape != (key.shape[0] * key.shape[1],):
        raise ValueError(f"rows must be [{key.shape[0] * key.shape[1]}], got {list(rows.shape)}.")
    head_size = key.shape[-1]
    key_cache.view(-1, head_size).index_copy_(0, rows, key.reshape(-1, head_size))
    value_cache.view(-1, head_size).index_copy_(0, rows, value.reshape(-1, head_size))


def reshape_and_cache_triton(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Scatter keys and values into their slots, in place; a token whose slot is negative is skipped.

    Args:
        key, value: [num_tokens, num_kv_heads, head_size]; the last axis is contiguous.
        key_cache, value_cache: [num_blocks, num_kv_heads, block_size, head_size], dtype of `key`, strided alike; the
            last axis is contiguous.
        slot_mapping: [num_tokens] int32 or int64, each below num_blocks × block_size, no two alike that are not
            negative: -1 pads the batch of a captured graph.

    Raises:
        ValueError: shapes, dtypes, strides or devices that contradict each other.
    """
    _check_shapes(key, value, key_cache, value_cache)
    _check_layout(key, value, key_cache, value_cache, slot_mapping)
    num_tokens, num_kv_heads, head_size = key.shape
    if not num_tokens:
        return
    block_d = next_power_of_2(head_size)
    block_h = min(next_power_of_2(num_kv_heads), max(1, _TILE // block_d))
    _reshape_and_cache_kernel[(num_tokens, cdiv(num_kv_heads, block_h))](
        *(key, value, key_cache, value_cache, slot_mapping, num_kv_heads),
        *(key.stride(0), key.stride(1), value.stride(0), value.stride(1), *key_cache.stride()[:3]),
        BLOCK_SIZE=key_cache.shape[2],
        HEAD_SIZE=head_size,
        BLOCK_H=block_h,
        BLOCK_D=block_d,
        num_warps=4 if block_h * block_d > 512 else 1,
    )


@jit
def _reshape_and_cache_kernel(
    key: tl.tensor,
    value: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    slot_mapping: tl.tensor,
    num_kv_heads: int,
    key_stride_token: int,
    key_stride_head: int,
    value_stride_token: int,
    value_stride_head: int,
    cache_stride_block: int,
    cache_stride_head: int,
    cache_stride_slot: int,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot < 0:
        return
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    dim = tl.arange(0, BLOCK_D)[None, :]
    inside = (head < num_kv_heads) & (dim < HEAD_SIZE)
    place = slot // BLOCK_SIZE * cache_stride_block + slot % BLOCK_SIZE * cache_stride_slot
    place += head * cache_stride_head + dim
    keys = tl.load(key + token * key_stride_token + head * key_stride_head + dim, mask=inside)
    values = tl.load(value + token * value_stride_token + head * value_stride_head + dim, mask=inside)
    tl.store(key_cache + place, keys, mask=inside)
    tl.store(value_cache + place, values, mask=inside)


def _check_shapes(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor) -> None:
    if key.dim() != 3 or key.shape != value.shape:
        raise ValueError(
            "key and value must be [num_tokens, num_kv_heads, head_size], "
            f"got {list(key.shape)} and {list(value.shape)}."
        )
    if key_cache.dim() != 4 or key_cache.shape != value_cache.shape or key_cache.shape[1::2] != key.shape[1:]:
        raise ValueError(
            f"key_cache and value_cache must be [num_blocks, {key.shape[1]}, block_size, {key.shape[2]}], "
            f"got {list(key_cache.shape)} and {list(value_cache.shape)}."
        )


def _check_layout(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    if slot_mapping.shape != key.shape[:1] or slot_mapping.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"slot_mapping must be [{key.shape[0]}] int32 or int64, "
            f"got {list(slot_mapping.shape)} {slot_mapping.dtype}."
        )
    if not key.dtype == value.dtype == key_cache.dtype == value_cache.dtype:
        raise ValueError(
            "keys, values and caches must have one dtype, "
            f"got {key.dtype}, {value.dtype}, {key_cache.dtype} and {value_cache.dtype}."
        )
    if not key.device == value.device == key_cache.device == value_cache.device == slot_mapping.device:
        raise ValueError("keys, values, caches and slot_mapping must be on one device.")
    if key_cache.stride() != value_cache.stride():
        raise ValueError(
            f"key_cache and value_cache must be strided alike, got {key_cache.stride()} and {value_cache.stride()}."
        )
    if not key.stride(2) == value.stride(2) == key_cache.stride(3) == 1 or not slot_mapping.is_contiguous():
        raise ValueError("the heads of keys, values and caches, and slot_mapping, must be contiguous.")


def specimens() -> list[Specimen]:
    """A token of Llama 3 8B: 8 heads of 128, in bfloat16."""
    pointers = dict.fromkeys(("key", "value", "key_cache", "value_cache"), "*bf16")
    axes = ("key_stride_token", "key_stride_head", "value_stride_token", "value_stride_head")
    strides = dict.fromkeys((*axes, "cache_stride_block", "cache_stride_head", "cache_stride_slot"), "i32:16")
    return [
        Specimen(
            "reshape_and_cache",
            _reshape_and_cache_kernel,
            {**pointers, "slot_mapping": "*i64", "num_kv_heads": "i32", **strides},
            {"BLOCK_SIZE": 16, "HEAD_SIZE": 128, "BLOCK_H": 8, "BLOCK_D": 128},
            num_warps=4,
            num_stages=3,
            flops=0,
            bytes=2 * 2 * 2 * 8 * 128 + 8,
        )
    ]
