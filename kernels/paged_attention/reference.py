"""Paged attention as it is defined: in float64, one query at a time. For tests, which hold the fast ones against it."""

from __future__ import annotations

import torch
from torch import Tensor


def attention_reference(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    alibi_slopes: Tensor | None = None,
) -> Tensor:
    """Attention of a super-sequence over the paged cache, which already holds this step's keys and values.

    Args:
        query: [num_tokens, num_heads, head_size].
        key_cache, value_cache: [num_blocks, num_kv_heads, block_size, head_size].
        block_tables: [num_requests, max_blocks] integers; what follows a request's last block is not looked at.
        query_start_loc: [num_requests + 1] integers.
        seq_lens: [num_requests] integers: keys of each request, this step's tokens included.
        scale: factor on the scores.
        sliding_window: keys that a query sees, itself included; None: all before it.
        soft_cap: bound of the scores; None: none.
        alibi_slopes: [num_heads]; None: no ALiBi.

    Returns:
        [num_tokens, num_heads, head_size] float64; rows that belong to no request are zero.
    """
    output = torch.zeros(query.shape, dtype=torch.float64)
    group_size = query.shape[1] // key_cache.shape[1]
    slopes = torch.zeros(query.shape[1]) if alibi_slopes is None else alibi_slopes
    for request, seq_len in enumerate(seq_lens.tolist()):
        start, stop = query_start_loc[request : request + 2].tolist()
        for token in range(start, stop):
            position = seq_len - (stop - token)
            first = 0 if sliding_window is None else max(0, position - sliding_window + 1)
            seen = torch.arange(first, position + 1)
            # [keys, num_kv_heads, head_size], then one KV head for each query head.
            keys = _tokens(key_cache, block_tables[request], seen).repeat_interleave(group_size, dim=1)
            values = _tokens(value_cache, block_tables[request], seen).repeat_interleave(group_size, dim=1)
            scores = scale * torch.einsum("hd,khd->hk", query[token].double(), keys)
            if soft_cap is not None:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            scores += slopes.double()[:, None] * (seen - position)
            output[token] = torch.einsum("hk,khd->hd", torch.softmax(scores, dim=-1), values)
    return output


def _tokens(cache: Tensor, block_table: Tensor, positions: Tensor) -> Tensor:
    """[len(positions), num_kv_heads, head_size] float64: what a request has cached at some of its positions."""
    block_size = cache.shape[2]
    return cache[block_table[positions // block_size].long(), :, positions % block_size].double()
