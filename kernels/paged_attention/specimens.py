"""Typical launches of paged attention, to be compiled with no device at hand (`kernels.aot`).

Most are of Llama 3 8B: 32 query heads on 8 KV heads of size 128, blocks of 16 tokens. Decodes have a context of 4096
tokens, 32 of them in a batch; alone, their context is cut into splits. A prefill is that of 2048 tokens at once. Flops
and bytes are those of one program, of a prefill the one with the most keys.
"""

from __future__ import annotations

import math

from kernels.paged_attention.tiling import MIN_SPLIT_KEYS, Tiling
from kernels.paged_attention.triton_kernels import attend, reduce_splits
from kernels.specimen import Specimen

_CONTEXT = 4096
_PROMPT = 2048
_NUM_SPLITS = 8
_ITEMSIZE = {"bf16": 2, "fp16": 2, "fp32": 4}


def specimens() -> list[Specimen]:
    """Decodes and prefills, whole and split, in all dtypes."""
    return [
        _attend("attend_decode_bf16", "bf16", num_queries=1, num_keys=_CONTEXT),
        _attend("attend_decode_split_bf16", "bf16", num_queries=1, num_keys=_CONTEXT, num_splits=_NUM_SPLITS),
        _attend("attend_prefill_bf16", "bf16", num_queries=_PROMPT, num_keys=_PROMPT),
        _attend("attend_prefill_fp16_heads_of_64", "fp16", num_queries=_PROMPT, num_keys=_PROMPT, head_size=64),
        _attend("attend_prefill_fp32", "fp32", num_queries=_PROMPT, num_keys=_PROMPT),
        _reduce(),
    ]


def _attend(
    name: str,
    dtype: str,
    *,
    num_queries: int,
    num_keys: int,
    num_splits: int = 1,
    head_size: int = 128,
    group_size: int = 4,
) -> Specimen:
    itemsize = _ITEMSIZE[dtype]
    tiling = Tiling.of(head_size, group_size, num_queries, itemsize)
    tile_queries = tiling.block_m // group_size
    split = num_splits > 1
    pointers = {
        "output_ptr": "*fp32" if split else f"*{dtype}",
        **dict.fromkeys(("query_ptr", "key_cache_ptr", "value_cache_ptr"), f"*{dtype}"),
        "block_tables_ptr": "*i32",
        **dict.fromkeys(("query_start_loc_ptr", "seq_lens_ptr"), "*i64"),
    }
    strides = ("output_stride_token", "output_stride_head", "query_stride_token", "query_stride_head")
    cache_strides = ("cache_stride_block", "cache_stride_head", "cache_stride_slot")
    numbers = {
        "scale": "fp32",
        **dict.fromkeys(("num_requests", "num_splits", "table_stride"), "i32"),
        **dict.fromkeys((*strides, *cache_strides), "i32:16"),
    }
    rows, keys = min(num_queries, tile_queries) * group_size, num_keys // num_splits
    written = rows * (4 * head_size + 4) if split else rows * head_size * itemsize
    return Specimen(
        name,
        attend,
        {**pointers, **numbers, **({"lse_ptr": "*fp32"} if split else {})},
        {
            **({} if split else {"lse_ptr": None}),
            "alibi_slopes_ptr": None,
            "GROUP_SIZE": group_size,
            "HEAD_SIZE": head_size,
            "BLOCK_SIZE": 16,
            "SLIDING_WINDOW": None,
            "SOFT_CAP": None,
            "ONE_TILE": num_queries <= tile_queries,
            "SPLIT": split,
            "MIN_SPLIT_KEYS": MIN_SPLIT_KEYS,
            "WIDEN": False,
            "BLOCK_M": tiling.block_m,
            "BLOCK_N": tiling.block_n,
            "BLOCK_D": tiling.block_d,
        },
        tiling.num_warps,
        tiling.num_stages,
        flops=2 * 2 * rows * keys * head_size,
        bytes=2 * keys * head_size * itemsize + rows * head_size * itemsize + written + 4 * math.ceil(keys / 16),
    )


def _reduce(head_size: int = 128) -> Specimen:
    pointers = {"output_ptr": "*bf16", "partial_ptr": "*fp32", "lse_ptr": "*fp32"}
    lengths = dict.fromkeys(("query_start_loc_ptr", "seq_lens_ptr"), "*i64")
    numbers = {"num_requests": "i32", "num_splits": "i32"}
    return Specimen(
        "reduce_splits_bf16",
        reduce_splits,
        {**pointers, **lengths, **numbers, "output_stride_token": "i32:16", "output_stride_head": "i32:16"},
        {"HEAD_SIZE": head_size, "BLOCK_S": _NUM_SPLITS, "BLOCK_D": head_size},
        num_warps=4,
        num_stages=3,
        flops=3 * _NUM_SPLITS * head_size,
        bytes=_NUM_SPLITS * (head_size + 1) * 4 + 2 * head_size,
    )
