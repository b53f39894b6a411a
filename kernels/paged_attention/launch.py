"""Launch the Triton kernels of paged attention."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from kernels.jit import next_power_of_2
from kernels.paged_attention.tiling import MIN_SPLIT_KEYS, Tiling, choose_num_splits, num_tiles
from kernels.paged_attention.triton_kernels import attend, reduce_splits

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def paged_attention_triton(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    *,
    max_query_len: int,
    max_seq_len: int,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    alibi_slopes: Tensor | None = None,
    num_splits: int | None = None,
    output: Tensor | None = None,
) -> Tensor:
    """Attention of a super-sequence over the paged cache, which already holds this step's keys and values.

    Reads no device tensor on the host and waits for nothing, so that it can be captured in a CUDA graph. A graph may
    be padded: with requests of no query or of `seq_lens` 0, and with tokens that belong to no request. The outputs of
    these are left as they are.

    Args:
        query: [num_tokens, num_heads, head_size], float16, bfloat16 or float32; the last axis is contiguous.
        key_cache, value_cache: [num_blocks, num_kv_heads, block_size, head_size], dtype of `query`, strided alike; the
            last axis is contiguous.
        block_tables: [num_requests, max_blocks] int32 or int64, rows contiguous; what follows a request's last block
            is not looked at.
        query_start_loc: [num_requests + 1] int32 or int64, contiguous.
        seq_lens: [num_requests] int32 or int64, contiguous: keys of each request, this step's tokens included.
        max_query_len, max_seq_len: no request has more queries or keys; of a captured graph, none it is replayed with.
        scale: factor on the scores, usually head_size ** -0.5.
        sliding_window: keys that a query sees, itself included; None: all before it.
        soft_cap: bound of the scores; None: none.
        alibi_slopes: [num_heads] float32; None: no ALiBi.
        num_splits: parts to cut contexts into; None: as many as it takes to occupy the GPU.
        output: where the result goes, shape and dtype of `query`, last axis contiguous; None: a new tensor.

    Returns:
        [num_tokens, num_heads, head_size]: `output`, or a new contiguous tensor.

    Raises:
        ValueError: shapes, dtypes, strides or devices that contradict each other, or numbers out of range.
    """
    if output is None:
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
    _check_heads(query, key_cache, value_cache, output)
    _check_requests(query, block_tables, query_start_loc, seq_lens)
    _check_options(query, sliding_window, soft_cap, alibi_slopes)
    if num_splits is not None and num_splits < 1:
        raise ValueError(f"num_splits must be None or >= 1, got {num_splits}.")
    num_tokens, num_heads, head_size = query.shape
    num_requests, num_kv_heads, block_size = len(seq_lens), key_cache.shape[1], key_cache.shape[2]
    if not num_tokens or not num_requests:
        return output

    group_size = num_heads // num_kv_heads
    tiling = Tiling.of(head_size, group_size, max_query_len, query.element_size())
    tile_queries = tiling.block_m // group_size
    tiles = num_tiles(tile_queries, max_query_len, num_tokens, num_requests)
    if num_splits is None:
        most_keys = max_seq_len if sliding_window is None else min(max_seq_len, sliding_window + tile_queries - 1)
        num_splits = choose_num_splits(tiles * num_kv_heads, most_keys, _num_processors(query.device))
    target, lse = output, None
    if num_splits > 1:
        shape = (num_tokens, num_heads, num_splits)
        target = torch.empty((*shape, head_size), dtype=torch.float32, device=query.device)
        lse = torch.empty(shape, dtype=torch.float32, device=query.device)

    attend[(tiles, num_kv_heads, num_splits)](
        target,
        lse,
        query,
        key_cache,
        value_cache,
        block_tables,
        query_start_loc,
        seq_lens,
        alibi_slopes,
        num_requests,
        num_splits,
        scale * math.log2(math.e),
        target.stride(0),
        target.stride(1),
        query.stride(0),
        query.stride(1),
        key_cache.stride(0),
        key_cache.stride(1),
        key_cache.stride(2),
        block_tables.stride(0),
        GROUP_SIZE=group_size,
        HEAD_SIZE=head_size,
        BLOCK_SIZE=block_size,
        SLIDING_WINDOW=sliding_window,
        SOFT_CAP=None if soft_cap is None else soft_cap * math.log2(math.e),
        ONE_TILE=max_query_len <= tile_queries,
        SPLIT=num_splits > 1,
        MIN_SPLIT_KEYS=MIN_SPLIT_KEYS,
        # Triton's interpreter, which alone takes tensors of the CPU, multiplies bfloat16 as if it were integers.
        WIDEN=query.device.type == "cpu",
        BLOCK_M=tiling.block_m,
        BLOCK_N=tiling.block_n,
        BLOCK_D=tiling.block_d,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    if lse is not None:
        reduce_splits[(num_tokens, num_heads)](
            output,
            target,
            lse,
            query_start_loc,
            seq_lens,
            num_requests,
            num_splits,
            output.stride(0),
            output.stride(1),
            HEAD_SIZE=head_size,
            BLOCK_S=next_power_of_2(num_splits),
            BLOCK_D=tiling.block_d,
        )
    return output


@functools.cache
def _num_processors(device: torch.device) -> int:
    """Streaming multiprocessors; 1 where kernels are interpreted."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _check_heads(query: Tensor, key_cache: Tensor, value_cache: Tensor, output: Tensor) -> None:
    if query.dim() != 3 or query.dtype not in DTYPES or query.stride(2) != 1:
        raise ValueError(
            "query must be [num_tokens, num_heads, head_size] in float16, bfloat16 or float32 with contiguous heads, "
            f"got {_described(query)}."
        )
    head_size = query.shape[2]
    if key_cache.dim() != 4 or key_cache.shape[3] != head_size or query.shape[1] % key_cache.shape[1]:
        raise ValueError(
            f"key_cache must be [num_blocks, a divisor of {query.shape[1]} KV heads, block_size, {head_size}], "
            f"got {_described(key_cache)}."
        )
    if not 1 <= head_size <= 256:
        raise ValueError(f"head_size must be at most 256, got {head_size}.")
    if key_cache.shape != value_cache.shape or key_cache.stride() != value_cache.stride() or key_cache.stride(3) != 1:
        raise ValueError(
            "key_cache and value_cache must have one shape, one layout and contiguous heads, "
            f"got {_described(key_cache)} and {_described(value_cache)}."
        )
    if not query.dtype == key_cache.dtype == value_cache.dtype:
        raise ValueError(
            f"query and caches must have one dtype, got {query.dtype}, {key_cache.dtype} and {value_cache.dtype}."
        )
    if not query.device == key_cache.device == value_cache.device == output.device:
        raise ValueError(
            "query, caches and output must be on one device, "
            f"got {query.device}, {key_cache.device}, {value_cache.device} and {output.device}."
        )
    if output.shape != query.shape or output.dtype != query.dtype or output.stride(2) != 1:
        raise ValueError(f"output must be like query with contiguous heads, got {_described(output)}.")


def _check_requests(query: Tensor, block_tables: Tensor, query_start_loc: Tensor, seq_lens: Tensor) -> None:
    tensors = (block_tables, query_start_loc, seq_lens)
    num_requests = seq_lens.numel()
    if (
        block_tables.dim() != 2
        or block_tables.shape[0] != num_requests
        or query_start_loc.shape != (num_requests + 1,)
        or seq_lens.dim() != 1
    ):
        raise ValueError(
            "block_tables must be [R, max_blocks], query_start_loc [R + 1] and seq_lens [R], got "
            f"{list(block_tables.shape)}, {list(query_start_loc.shape)} and {list(seq_lens.shape)}."
        )
    for name, tensor in zip(("block_tables", "query_start_loc", "seq_lens"), tensors, strict=True):
        if tensor.dtype not in (torch.int32, torch.int64) or tensor.device != query.device:
            raise ValueError(f"{name} must be int32 or int64 on {query.device}, got {tensor.dtype} on {tensor.device}.")
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()}.")


def _check_options(
    query: Tensor, sliding_window: int | None, soft_cap: float | None, alibi_slopes: Tensor | None
) -> None:
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(f"sliding_window must be None or >= 1, got {sliding_window}.")
    if soft_cap is not None and not soft_cap > 0.0:
        raise ValueError(f"soft_cap must be None or > 0, got {soft_cap}.")
    if alibi_slopes is None:
        return
    if alibi_slopes.shape != (query.shape[1],) or alibi_slopes.dtype != torch.float32:
        raise ValueError(
            f"alibi_slopes must be [{query.shape[1]}] float32, got {list(alibi_slopes.shape)} {alibi_slopes.dtype}."
        )
    if alibi_slopes.device != query.device or not alibi_slopes.is_contiguous():
        raise ValueError(f"alibi_slopes must be contiguous on {query.device}, got {alibi_slopes.device}.")


def _described(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {tensor.dtype} with strides {list(tensor.stride())}"
