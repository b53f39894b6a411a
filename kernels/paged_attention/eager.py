"""Paged attention in plain torch operations, batched as far as the lengths of the requests allow.

How the work is laid out does not depend on the layer, so `plan_attention` works it out once a step and
`paged_attention` runs it in every layer. Decodes are batched: rows of similar length share one batched matrix
product, and padding never doubles a row's work. Prompt chunks run request by request, in tiles of queries that end
their keys where causality does.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

#: Queries of a prompt chunk that share one product; keys behind the last of them are not touched.
PREFILL_TILE = 256

#: Most key positions, padding included, that one group of decodes gathers: what is gathered should stay in cache.
DECODE_GROUP_KEYS = 4096


class DecodeGroup(NamedTuple):
    """Requests with one query each, padded to a common number of keys L."""

    queries: Tensor
    """[rows] int64: places of their queries in the super-sequence."""
    cache_rows: Tensor
    """[rows × num_kv_heads × blocks] int64: (block, head) pairs to gather, as rows of the flattened cache."""
    mask: Tensor
    """[rows × num_kv_heads, 1, L], 0 or -inf: added to the scores. With ALiBi [rows × num_kv_heads, group, L], and its
    biases in place of 0."""
    masked: Tensor
    """[n] int64: flat (row, head, key) places under the mask. They are zeroed: -inf hides a number, but not a NaN."""


class PrefillChunk(NamedTuple):
    """One request with several queries."""

    start: int
    """Place of its first query in the super-sequence."""
    num_queries: int
    num_keys: int
    """Keys from the first gathered one to its last token."""
    cache_rows: Tensor
    """[num_kv_heads × blocks] int64, as in `DecodeGroup`."""


class AttentionPlan(NamedTuple):
    """The layout of a step's attention, the same for every layer with the same sliding window."""

    num_tokens: int
    block_size: int
    num_kv_heads: int
    sliding_window: int | None
    decodes: tuple[DecodeGroup, ...]
    prefills: tuple[PrefillChunk, ...]
    tile_mask: Tensor | None
    """[PREFILL_TILE, most keys], 0 or -inf. Aligned to its lower right corner it fits every tile of every chunk."""
    alibi_slopes: Tensor | None
    """[num_kv_heads, group, 1, 1], float32 at least."""


def plan_attention(
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    *,
    block_size: int,
    num_kv_heads: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    sliding_window: int | None = None,
    alibi_slopes: Tensor | None = None,
) -> AttentionPlan:
    """Lay out one step.

    Args:
        block_tables: [num_requests, max_blocks] integers on the CPU; what follows a request's last block is ignored.
        query_start_loc: [num_requests + 1] integers on the CPU.
        seq_lens: [num_requests] integers on the CPU: keys of each request, this step's tokens included.
        dtype: dtype of the queries.
        device: where the attention will run.
        sliding_window: keys that a query sees, itself included; None: all before it.
        alibi_slopes: [num_heads] on the CPU; None: no ALiBi.

    Raises:
        ValueError: shapes or lengths that contradict each other.
    """
    query_lens = _checked_query_lens(block_tables, query_start_loc, seq_lens, block_size, sliding_window)
    slopes = None if alibi_slopes is None else _per_kv_head(alibi_slopes, num_kv_heads, dtype)
    layout = _Layout(
        block_tables.long(), query_start_loc.long(), seq_lens.long(), query_lens, block_size, num_kv_heads, slopes
    )
    prefills = tuple(
        layout.prefill_chunk(request, sliding_window, device)
        for request in torch.nonzero(query_lens > 1).flatten().tolist()
    )
    most_keys = max((chunk.num_keys for chunk in prefills), default=0)
    return AttentionPlan(
        num_tokens=int(query_start_loc[-1]),
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        sliding_window=sliding_window,
        decodes=tuple(layout.decode_group(rows, sliding_window, dtype, device) for rows in layout.decode_rows()),
        prefills=prefills,
        tile_mask=_tile_mask(most_keys, sliding_window, dtype, device) if prefills else None,
        alibi_slopes=None if slopes is None else slopes.to(device),
    )


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: AttentionPlan,
    scale: float,
    soft_cap: float | None = None,
) -> Tensor:
    """Attention of a super-sequence over the paged cache, which already holds this step's keys and values.

    Args:
        query: [num_tokens, num_heads, head_size].
        key_cache, value_cache: [num_blocks, num_kv_heads, block_size, head_size], contiguous, dtype of `query`.
        plan: from `plan_attention` with the same block size, number of KV heads and dtype.
        scale: factor on the scores, usually head_size ** -0.5.
        soft_cap: bound of the scores; None: none.

    Returns:
        [num_tokens, num_heads, head_size], dtype of `query`.

    Raises:
        ValueError: shapes that contradict each other or the plan, or a soft cap that is not positive.
    """
    _check_shapes(query, key_cache, value_cache, plan)
    if soft_cap is not None and not soft_cap > 0.0:
        raise ValueError(f"soft_cap must be None or > 0, got {soft_cap}.")
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    for group in plan.decodes:
        _attend_decodes(output, query, key_cache, value_cache, group, plan, scale, soft_cap)
    for chunk in plan.prefills:
        _attend_chunk(output, query, key_cache, value_cache, chunk, plan, scale, soft_cap)
    return output


def _attend_decodes(
    output: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    group: DecodeGroup,
    plan: AttentionPlan,
    scale: float,
    soft_cap: float | None,
) -> None:
    rows, head_size = group.queries.numel(), query.shape[-1]
    pairs = rows * plan.num_kv_heads
    # The heads that share a KV head are the rows of one small matrix. Scores are kept in float32 at least.
    wide = torch.promote_types(query.dtype, torch.float32)
    grouped = query.index_select(0, group.queries).reshape(pairs, -1, head_size).to(wide)
    key = _gather(keys, group.cache_rows).index_fill_(0, group.masked, 0.0).view(pairs, -1, head_size).to(wide)
    value = _gather(values, group.cache_rows).index_fill_(0, group.masked, 0.0).view(pairs, -1, head_size).to(wide)
    if soft_cap is None:
        scores = torch.baddbmm(group.mask, grouped, key.transpose(1, 2), alpha=scale)
    else:
        scores = _capped(torch.bmm(grouped, key.transpose(1, 2)).mul_(scale), soft_cap).add_(group.mask)
    attended = torch.bmm(torch.softmax(scores, dim=-1), value)
    output.index_copy_(0, group.queries, attended.view(rows, -1, head_size).to(output.dtype))


def _attend_chunk(
    output: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    chunk: PrefillChunk,
    plan: AttentionPlan,
    scale: float,
    soft_cap: float | None,
) -> None:
    num_kv_heads, head_size = plan.num_kv_heads, query.shape[-1]
    group_size = query.shape[1] // num_kv_heads
    # [num_kv_heads, group, keys, head_size]: KV heads stand where SDPA expects the batch, and are shared by stride 0.
    shape = (num_kv_heads, group_size, -1, head_size)
    key = _gather(keys, chunk.cache_rows).view(num_kv_heads, 1, -1, head_size).expand(shape)
    value = _gather(values, chunk.cache_rows).view(num_kv_heads, 1, -1, head_size).expand(shape)
    mask, slopes = plan.tile_mask, plan.alibi_slopes
    assert mask is not None
    plain = soft_cap is None and slopes is None
    for first in range(0, chunk.num_queries, PREFILL_TILE):
        last = min(first + PREFILL_TILE, chunk.num_queries)
        num_queries = last - first
        end = chunk.num_keys - (chunk.num_queries - last)
        begin = 0 if plan.sliding_window is None else max(0, end - num_queries - plan.sliding_window + 1)
        tile = slice(chunk.start + first, chunk.start + last)
        grouped = query[tile].view(num_queries, num_kv_heads, group_size, head_size).permute(1, 2, 0, 3)
        tile_key, tile_value = key[:, :, begin:end], value[:, :, begin:end]
        tile_mask = mask[PREFILL_TILE - num_queries :, mask.shape[1] - (end - begin) :]
        if plain:
            attended = F.scaled_dot_product_attention(grouped, tile_key, tile_value, attn_mask=tile_mask, scale=scale)
        else:
            attended = _attend_tile(grouped, tile_key, tile_value, tile_mask, scale, soft_cap, slopes)
        output[tile].view(num_queries, num_kv_heads, group_size, head_size).copy_(attended.permute(2, 0, 1, 3))


def _attend_tile(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scale: float,
    soft_cap: float | None,
    slopes: Tensor | None,
) -> Tensor:
    """`scaled_dot_product_attention` with what it lacks, a soft cap and biases in float32 for queries of fewer bits."""
    wide = torch.promote_types(query.dtype, torch.float32)
    num_queries, num_keys = mask.shape
    # The group shares its keys: its queries are rows of one matrix.
    scores = query.flatten(1, 2).to(wide) @ key[:, 0].transpose(1, 2).to(wide)
    scores = scores.mul_(scale).view(*query.shape[:3], num_keys)
    if soft_cap is not None:
        scores = _capped(scores, soft_cap)
    if slopes is not None:
        positions = torch.arange(num_keys, device=query.device)
        scores += slopes * (positions - positions[num_keys - num_queries :, None])
    weights = torch.softmax(scores.add_(mask), dim=-1)
    return (weights.flatten(1, 2) @ value[:, 0].to(wide)).view(query.shape)


def _capped(scores: Tensor, soft_cap: float) -> Tensor:
    """Between ±soft_cap, in place."""
    return scores.div_(soft_cap).tanh_().mul_(soft_cap)


def _gather(cache: Tensor, cache_rows: Tensor) -> Tensor:
    """[len(cache_rows) × block_size, head_size]: the tokens of the given (block, head) pairs, one after another."""
    block_size, head_size = cache.shape[-2:]
    return cache.view(-1, block_size * head_size).index_select(0, cache_rows).view(-1, head_size)


class _Layout(NamedTuple):
    """The lengths of a step, from which its groups and chunks are made."""

    block_tables: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    query_lens: Tensor
    block_size: int
    num_kv_heads: int
    alibi_slopes: Tensor | None

    def decode_rows(self) -> list[Tensor]:
        """Split the requests with one query into groups, longest first."""
        seq_lens = self.seq_lens.tolist()
        decodes = torch.nonzero(self.query_lens == 1).flatten().tolist()
        requests = sorted(decodes, key=seq_lens.__getitem__, reverse=True)
        lengths = [seq_lens[request] for request in requests]
        groups, begin = [], 0
        while begin < len(lengths):
            longest = lengths[begin]
            end = begin + 1
            most = max(1, DECODE_GROUP_KEYS // longest)
            while end < len(lengths) and end - begin < most and 2 * lengths[end] > longest:
                end += 1
            groups.append(torch.tensor(requests[begin:end]))
            begin = end
        return groups

    def decode_group(
        self, requests: Tensor, sliding_window: int | None, dtype: torch.dtype, device: torch.device | str
    ) -> DecodeGroup:
        lens = self.seq_lens[requests, None]
        # With a window the gather begins at the block of the first visible key.
        first_key = torch.zeros_like(lens) if sliding_window is None else (lens - sliding_window).clamp_(min=0)
        first_block = first_key // self.block_size
        last_block = (lens - 1) // self.block_size
        columns = first_block + torch.arange(int((last_block - first_block).max()) + 1)
        block_ids = self.block_tables[requests].gather(1, columns.minimum(last_block))

        positions = first_block * self.block_size + torch.arange(columns.shape[1] * self.block_size)
        hidden = (positions < first_key) | (positions >= lens)
        hidden = hidden[:, None].expand(-1, self.num_kv_heads, -1).flatten(0, 1)
        wide = torch.promote_types(dtype, torch.float32)
        mask = torch.zeros(hidden.shape, dtype=wide).masked_fill_(hidden, float("-inf"))[:, None]
        if self.alibi_slopes is not None:
            biases = self.alibi_slopes[..., 0] * (positions - (lens - 1))[:, None, None]
            mask = mask + biases.flatten(0, 1)
        return DecodeGroup(
            queries=self.query_start_loc[requests].to(device),
            cache_rows=self._cache_rows(block_ids).to(device),
            mask=mask.to(device),
            masked=torch.nonzero(hidden.flatten()).flatten().to(device),
        )

    def prefill_chunk(self, request: int, sliding_window: int | None, device: torch.device | str) -> PrefillChunk:
        num_keys, num_queries = int(self.seq_lens[request]), int(self.query_lens[request])
        first_key = 0 if sliding_window is None else max(0, num_keys - num_queries - sliding_window + 1)
        first_block = first_key // self.block_size
        block_ids = self.block_tables[request, first_block : -(-num_keys // self.block_size)]
        return PrefillChunk(
            start=int(self.query_start_loc[request]),
            num_queries=num_queries,
            num_keys=num_keys - first_block * self.block_size,
            cache_rows=self._cache_rows(block_ids[None]).to(device),
        )

    def _cache_rows(self, block_ids: Tensor) -> Tensor:
        heads = torch.arange(self.num_kv_heads)[None, :, None]
        return (block_ids[:, None] * self.num_kv_heads + heads).flatten()


def _per_kv_head(alibi_slopes: Tensor, num_kv_heads: int, dtype: torch.dtype) -> Tensor:
    if alibi_slopes.dim() != 1 or not alibi_slopes.numel() or alibi_slopes.numel() % num_kv_heads:
        raise ValueError(f"alibi_slopes must be [a multiple of {num_kv_heads} heads], got {list(alibi_slopes.shape)}.")
    return alibi_slopes.to(torch.promote_types(dtype, torch.float32)).view(num_kv_heads, -1, 1, 1)


def _tile_mask(num_keys: int, sliding_window: int | None, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    # Distance of a key before a query, both counted from the lower right corner.
    distance = torch.arange(num_keys - 1, -1, -1) - torch.arange(PREFILL_TILE - 1, -1, -1)[:, None]
    hidden = distance < 0
    if sliding_window is not None:
        hidden |= distance >= sliding_window
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf")).to(device)


def _checked_query_lens(
    block_tables: Tensor, query_start_loc: Tensor, seq_lens: Tensor, block_size: int, sliding_window: int | None
) -> Tensor:
    num_requests = seq_lens.numel()
    if block_tables.dim() != 2 or block_tables.shape[0] != num_requests or query_start_loc.shape != (num_requests + 1,):
        raise ValueError(
            "block_tables must be [R, max_blocks], query_start_loc [R + 1] and seq_lens [R], got "
            f"{list(block_tables.shape)}, {list(query_start_loc.shape)} and {list(seq_lens.shape)}."
        )
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(f"sliding_window must be None or >= 1, got {sliding_window}.")
    query_lens = query_start_loc.diff().long()
    if num_requests and bool(((query_lens < 1) | (query_lens > seq_lens)).any()):
        raise ValueError(
            "each request needs 1 to seq_len queries, got query lengths "
            f"{query_lens.tolist()} for sequence lengths {seq_lens.tolist()}."
        )
    if num_requests and int(seq_lens.max()) > block_tables.shape[1] * block_size:
        raise ValueError(
            f"block tables of {block_tables.shape[1]} blocks of {block_size} tokens "
            f"cannot hold a sequence of {int(seq_lens.max())} tokens."
        )
    return query_lens


def _check_shapes(query: Tensor, key_cache: Tensor, value_cache: Tensor, plan: AttentionPlan) -> None:
    if query.dim() != 3 or query.shape[0] != plan.num_tokens or query.shape[1] % plan.num_kv_heads:
        raise ValueError(
            f"query must be [{plan.num_tokens}, a multiple of {plan.num_kv_heads} heads, head_size], "
            f"got {list(query.shape)}."
        )
    if plan.alibi_slopes is not None and plan.alibi_slopes.numel() != query.shape[1]:
        raise ValueError(f"the plan has ALiBi slopes of {plan.alibi_slopes.numel()} heads, query has {query.shape[1]}.")
    expected = (plan.num_kv_heads, plan.block_size, query.shape[2])
    if key_cache.dim() != 4 or key_cache.shape[1:] != expected or value_cache.shape != key_cache.shape:
        raise ValueError(
            f"key_cache and value_cache must be [num_blocks, {', '.join(map(str, expected))}], "
            f"got {list(key_cache.shape)} and {list(value_cache.shape)}."
        )
    if key_cache.dtype != query.dtype or value_cache.dtype != query.dtype:
        raise ValueError(
            f"query and caches must have one dtype, got {query.dtype}, {key_cache.dtype} and {value_cache.dtype}."
        )
