"""Random steps for paged attention: their cache holds NaN wherever no query looks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.paged_attention.reference import attention_reference

SCALE = 0.3

#: Requests as (queries, keys): decodes and chunks, ends on and beside the edges of blocks and tiles.
MIXED = [(1, 1), (5, 5), (1, 37), (3, 40), (1, 16), (17, 17), (1, 17), (1, 100), (2, 33)]

#: How close an output must be to that in float64.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass
class Case:
    """A step: its tensors, what is done to the scores, and what must come out."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_tables: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    window: int | None
    soft_cap: float | None
    alibi_slopes: Tensor | None

    def expected(self) -> Tensor:
        """[num_tokens, num_heads, head_size] float64."""
        return attention_reference(
            self.query,
            self.key_cache,
            self.value_cache,
            self.block_tables,
            self.query_start_loc,
            self.seq_lens,
            scale=SCALE,
            sliding_window=self.window,
            soft_cap=self.soft_cap,
            alibi_slopes=self.alibi_slopes,
        )

    def check(self, output: Tensor) -> None:
        """Is this what must come out?"""
        assert output.dtype is self.query.dtype
        tolerance = TOLERANCE[output.dtype]
        torch.testing.assert_close(output.cpu().double(), self.expected(), atol=tolerance, rtol=tolerance)


def random_case(
    lengths: list[tuple[int, int]],
    *,
    block_size: int = 16,
    heads: tuple[int, int] = (4, 2),
    head_size: int = 16,
    dtype: torch.dtype = torch.float32,
    window: int | None = None,
    soft_cap: float | None = None,
    alibi: bool = False,
) -> Case:
    """A step of requests given as (queries, keys). Blocks are scattered; the null block and what is unused is NaN."""
    num_heads, num_kv_heads = heads
    widths = [-(-keys // block_size) for _, keys in lengths]
    num_blocks = sum(widths) + 3
    ids = (torch.randperm(num_blocks - 1) + 1).tolist()
    # What follows a request's last block in its table is another's business, here even out of range.
    block_tables = torch.full((len(lengths), max(widths) + 1), 10**6, dtype=torch.int32)
    shape = (num_blocks, num_kv_heads, block_size, head_size)
    key_cache, value_cache = torch.full(shape, torch.nan, dtype=dtype), torch.full(shape, torch.nan, dtype=dtype)
    for request, (num_queries, num_keys) in enumerate(lengths):
        blocks = torch.tensor([ids.pop() for _ in range(widths[request])])
        block_tables[request, : len(blocks)] = blocks
        first = 0 if window is None else max(0, num_keys - num_queries - window + 1)
        seen = torch.arange(first, num_keys)
        for cache in (key_cache, value_cache):
            entries = torch.randn(len(seen), num_kv_heads, head_size).to(dtype)
            cache[blocks[seen // block_size], :, seen % block_size] = entries
    query_lens = torch.tensor([num_queries for num_queries, _ in lengths])
    return Case(
        query=torch.randn(int(query_lens.sum()), num_heads, head_size).to(dtype),
        key_cache=key_cache,
        value_cache=value_cache,
        block_tables=block_tables,
        query_start_loc=torch.cat((torch.zeros(1), query_lens.cumsum(0))).to(torch.int32),
        seq_lens=torch.tensor([num_keys for _, num_keys in lengths], dtype=torch.int32),
        window=window,
        soft_cap=soft_cap,
        alibi_slopes=2.0 ** -torch.arange(1, num_heads + 1) if alibi else None,
    )
