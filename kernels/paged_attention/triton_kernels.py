"""The Triton kernels of paged attention: `attend` makes a tile of outputs, `reduce_splits` joins the parts of a row.

A *tile* is a few consecutive queries of one request times the `GROUP_SIZE` query heads that share a KV head, so that
keys and values are read once for all of them and fill a matrix product even when there is one query only::

    GROUP_SIZE = 4, BLOCK_M = 16: 4 queries a tile      row   0   1   2   3   4   5 …  15
                                                        query 0   0   0   0   1   1     3
                                                        head  4g  +1  +2  +3  4g  +1    +3

Tiles are numbered so that finding the request of one needs no more than `query_start_loc`: request r owns the tiles
from query_start_loc[r] // queries per tile + r on, which are one too many at times; those do nothing.

The softmax is the online one (Milakov and Gimelshein, 2018; Dao et al., 2022), in base 2. A context may be cut into
*splits* that different programs attend to (Flash-Decoding, Dao et al., 2023): each leaves its own normalised output
and the log2 of its sum, and the outputs are averaged with these as weights.

Nothing that depends on lengths is known on the host: grids follow from shapes, and a program that finds nothing to do
ends. Keys behind the end of a request, or before its window, are masked when they are read, and so are their entries
in the block table: neither what lies there nor where it points to matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.jit import jit

if TYPE_CHECKING:
    import triton.language as tl


@jit(varying=("num_requests", "num_splits", "table_stride"))
def attend(
    output_ptr: tl.tensor,  # [num_tokens, num_heads, num_splits, HEAD_SIZE]
    lse_ptr: tl.tensor | None,  # [num_tokens, num_heads, num_splits] float32, only if SPLIT
    query_ptr: tl.tensor,  # [num_tokens, num_heads, HEAD_SIZE]
    key_cache_ptr: tl.tensor,  # [num_blocks, num_kv_heads, BLOCK_SIZE, HEAD_SIZE]
    value_cache_ptr: tl.tensor,
    block_tables_ptr: tl.tensor,  # [num_requests, max_blocks]
    query_start_loc_ptr: tl.tensor,  # [num_requests + 1]
    seq_lens_ptr: tl.tensor,  # [num_requests]
    alibi_slopes_ptr: tl.tensor | None,  # [num_heads] float32
    num_requests: int,
    num_splits: int,
    scale: float,  # of the scores to base 2: times log2(e)
    output_stride_token: int,
    output_stride_head: int,
    query_stride_token: int,
    query_stride_head: int,
    cache_stride_block: int,
    cache_stride_head: int,
    cache_stride_slot: int,
    table_stride: int,
    GROUP_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SLIDING_WINDOW: tl.constexpr,  # or None
    SOFT_CAP: tl.constexpr,  # of the scores to base 2, or None
    ONE_TILE: tl.constexpr,  # no request has more queries than fit into a tile: tile r is that of request r
    SPLIT: tl.constexpr,
    MIN_SPLIT_KEYS: tl.constexpr,  # a shorter context is not cut
    WIDEN: tl.constexpr,  # multiply in float32
    BLOCK_M: tl.constexpr,  # rows of a tile
    BLOCK_N: tl.constexpr,  # keys that are attended to at once
    BLOCK_D: tl.constexpr,  # HEAD_SIZE, rounded up to a power of 2
) -> None:
    # The last tiles of a prompt see the most keys; they go first, so that no late one is waited for.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    tile_queries: tl.constexpr = BLOCK_M // GROUP_SIZE
    request, first_query = _tile_of(tile, query_start_loc_ptr, num_requests, tile_queries, ONE_TILE)
    start = tl.load(query_start_loc_ptr + request).to(tl.int32)
    num_queries = tl.load(query_start_loc_ptr + request + 1).to(tl.int32) - start
    seq_len = tl.load(seq_lens_ptr + request).to(tl.int32)
    if (first_query >= num_queries) | (seq_len < num_queries):
        return

    rows = tl.arange(0, BLOCK_M)
    queries = first_query + rows // GROUP_SIZE
    heads = kv_head * GROUP_SIZE + rows % GROUP_SIZE
    row_mask = (rows < tile_queries * GROUP_SIZE) & (queries < num_queries)
    positions = seq_len - num_queries + queries
    tokens = (start + queries).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    query = tl.load(
        query_ptr + (tokens * query_stride_token + heads * query_stride_head)[:, None] + dims[None, :],
        mask=row_mask[:, None] & (dims < HEAD_SIZE)[None, :],
        other=0.0,
    )
    slopes = tl.zeros([BLOCK_M], tl.float32)
    if alibi_slopes_ptr is not None:
        # log2(e) takes them to base 2.
        slopes = 1.4426950408889634 * tl.load(alibi_slopes_ptr + heads, mask=row_mask, other=0.0)

    # The keys that any row of the tile sees, and of these the ones that are this program's.
    first_position = seq_len - num_queries + first_query
    begin = 0 if SLIDING_WINDOW is None else tl.maximum(first_position - SLIDING_WINDOW + 1, 0)
    end = tl.minimum(first_position + tile_queries, seq_len)
    if SPLIT:
        per_split = tl.cdiv(tl.cdiv(end - begin, num_splits), BLOCK_N) * BLOCK_N
        per_split = tl.maximum(per_split, MIN_SPLIT_KEYS)
        begin += split * per_split
        end = tl.minimum(end, begin + per_split)

    # Less than any score; unlike minus infinity, it can be subtracted from itself.
    row_max = tl.full([BLOCK_M], -3.0e38, tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    table_ptr = block_tables_ptr + request * table_stride
    key_ptr = key_cache_ptr + kv_head * cache_stride_head
    value_ptr = value_cache_ptr + kv_head * cache_stride_head

    # What all rows see needs no mask: all but the last few keys, unless there is a window.
    masked_begin = begin
    if SLIDING_WINDOW is None:
        seen_by_all = tl.maximum(tl.minimum(first_position + 1, end) - begin, 0)
        masked_begin = begin + seen_by_all // BLOCK_N * BLOCK_N
        acc, row_max, row_sum = _attend_range(
            *(acc, row_max, row_sum, query, slopes, positions, begin, masked_begin),
            *(key_ptr, value_ptr, table_ptr, cache_stride_block, cache_stride_slot, scale),
            *(HEAD_SIZE, BLOCK_SIZE, SLIDING_WINDOW, SOFT_CAP, alibi_slopes_ptr is not None),
            *(False, WIDEN, BLOCK_N, BLOCK_D),
        )
    acc, row_max, row_sum = _attend_range(
        *(acc, row_max, row_sum, query, slopes, positions, masked_begin, end),
        *(key_ptr, value_ptr, table_ptr, cache_stride_block, cache_stride_slot, scale),
        *(HEAD_SIZE, BLOCK_SIZE, SLIDING_WINDOW, SOFT_CAP, alibi_slopes_ptr is not None),
        *(True, WIDEN, BLOCK_N, BLOCK_D),
    )

    # Only a split can hold nothing that a row sees.
    seen = row_sum > 0.0
    row_sum = tl.where(seen, row_sum, 1.0)
    output_rows = output_ptr + tokens * output_stride_token + heads * output_stride_head + split * HEAD_SIZE
    tl.store(
        output_rows[:, None] + dims[None, :],
        (acc / row_sum[:, None]).to(output_ptr.dtype.element_ty),
        mask=(row_mask & seen)[:, None] & (dims < HEAD_SIZE)[None, :],
    )
    if SPLIT:
        num_heads = tl.num_programs(1) * GROUP_SIZE
        lse = tl.where(seen, row_max + tl.log2(row_sum), float("-inf"))
        tl.store(lse_ptr + (tokens * num_heads + heads) * num_splits + split, lse, mask=row_mask)


@jit
def _attend_range(
    acc: tl.tensor,
    row_max: tl.tensor,
    row_sum: tl.tensor,
    query: tl.tensor,
    slopes: tl.tensor,
    positions: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    key_ptr: tl.tensor,
    value_ptr: tl.tensor,
    table_ptr: tl.tensor,
    cache_stride_block: int,
    cache_stride_slot: int,
    scale: float,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SLIDING_WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    ALIBI: tl.constexpr,
    MASKED: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> tuple:
    """Take the keys from `begin` to `end` into the running softmax of a tile."""
    dims = tl.arange(0, BLOCK_D)
    for first_key in tl.range(begin, end, BLOCK_N):
        keys = first_key + tl.arange(0, BLOCK_N)
        in_range = keys < end
        if MASKED:
            blocks = tl.load(table_ptr + keys // BLOCK_SIZE, mask=in_range, other=0)
        else:
            blocks = tl.load(table_ptr + keys // BLOCK_SIZE)
        slots = blocks.to(tl.int64) * cache_stride_block + (keys % BLOCK_SIZE) * cache_stride_slot
        if MASKED or HEAD_SIZE != BLOCK_D:
            mask = in_range[:, None] & (dims < HEAD_SIZE)[None, :]
            key = tl.load(key_ptr + slots[:, None] + dims[None, :], mask=mask, other=0.0)
            value = tl.load(value_ptr + slots[:, None] + dims[None, :], mask=mask, other=0.0)
        else:
            key = tl.load(key_ptr + slots[:, None] + dims[None, :])
            value = tl.load(value_ptr + slots[:, None] + dims[None, :])

        scores = scale * _product(query, tl.trans(key), WIDEN)
        if SOFT_CAP is not None:
            scores = SOFT_CAP * _tanh(scores / SOFT_CAP)
        if ALIBI:
            scores += slopes[:, None] * (keys[None, :] - positions[:, None]).to(tl.float32)
        if MASKED:
            visible = keys[None, :] <= positions[:, None]
            if SLIDING_WINDOW is not None:
                visible &= keys[None, :] > positions[:, None] - SLIDING_WINDOW
            scores = tl.where(visible, scores, float("-inf"))

        new_max = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(weights, 1)
        acc = acc * rescale[:, None] + _product(weights.to(value.dtype), value, WIDEN)
        row_max = new_max
    return acc, row_max, row_sum


@jit(varying=("num_requests", "num_splits"))
def reduce_splits(
    output_ptr: tl.tensor,  # [num_tokens, num_heads, HEAD_SIZE]
    partial_ptr: tl.tensor,  # [num_tokens, num_heads, num_splits, HEAD_SIZE] float32
    lse_ptr: tl.tensor,  # [num_tokens, num_heads, num_splits] float32
    query_start_loc_ptr: tl.tensor,  # [num_requests + 1]
    seq_lens_ptr: tl.tensor,  # [num_requests]
    num_requests: int,
    num_splits: int,
    output_stride_token: int,
    output_stride_head: int,
    HEAD_SIZE: tl.constexpr,
    BLOCK_S: tl.constexpr,  # num_splits, rounded up to a power of 2
    BLOCK_D: tl.constexpr,  # HEAD_SIZE, rounded up to a power of 2
) -> None:
    token = tl.program_id(0)
    head = tl.program_id(1)
    request = _request_of(token, query_start_loc_ptr, num_requests, 1, 0)
    start = tl.load(query_start_loc_ptr + request)
    stop = tl.load(query_start_loc_ptr + request + 1)
    if (token >= stop) | (tl.load(seq_lens_ptr + request) < stop - start):
        return
    row = token.to(tl.int64) * tl.num_programs(1) + head
    splits = tl.arange(0, BLOCK_S)
    dims = tl.arange(0, BLOCK_D)
    lse = tl.load(lse_ptr + row * num_splits + splits, mask=splits < num_splits, other=float("-inf"))
    # A split that saw nothing has left no output: what lies in its place is not looked at.
    partial = tl.load(
        partial_ptr + (row * num_splits + splits)[:, None] * HEAD_SIZE + dims[None, :],
        mask=(lse > float("-inf"))[:, None] & (dims < HEAD_SIZE)[None, :],
        other=0.0,
    )
    weights = tl.exp2(lse - tl.max(lse, 0))
    output = tl.sum(partial * weights[:, None], 0) / tl.sum(weights, 0)
    output_row = output_ptr + token.to(tl.int64) * output_stride_token + head * output_stride_head
    tl.store(output_row + dims, output.to(output_ptr.dtype.element_ty), mask=dims < HEAD_SIZE)


@jit
def _tile_of(
    tile: tl.tensor,
    query_start_loc_ptr: tl.tensor,
    num_requests: int,
    TILE_QUERIES: tl.constexpr,
    ONE_TILE: tl.constexpr,
) -> tuple:
    """The request that a tile belongs to, and which of its queries is the first of the tile."""
    request = tile
    first_query = 0
    if not ONE_TILE:
        request = _request_of(tile, query_start_loc_ptr, num_requests, TILE_QUERIES, 1)
        first_tile = tl.load(query_start_loc_ptr + request).to(tl.int32) // TILE_QUERIES + request
        first_query = (tile - first_tile) * TILE_QUERIES
    return request, first_query


@jit
def _request_of(
    place: tl.tensor, query_start_loc_ptr: tl.tensor, num_requests: int, UNIT: tl.constexpr, PER_REQUEST: tl.constexpr
) -> tl.tensor:
    """The last request r whose first place, query_start_loc[r] // UNIT + r × PER_REQUEST, is not behind `place`."""
    low = 0
    high = num_requests
    while high - low > 1:
        middle = (low + high) // 2
        first = tl.load(query_start_loc_ptr + middle).to(tl.int32) // UNIT + middle * PER_REQUEST
        if first <= place:
            low = middle
        else:
            high = middle
    return low


@jit
def _product(a: tl.tensor, b: tl.tensor, WIDEN: tl.constexpr) -> tl.tensor:
    if WIDEN:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    # "ieee" concerns float32 only: its numbers are not rounded for the tensor cores.
    return tl.dot(a, b, input_precision="ieee")


@jit
def _tanh(x: tl.tensor) -> tl.tensor:
    # ±1 where the exponential overflows or vanishes.
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)
