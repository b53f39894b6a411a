"""Paged attention against attention written out per query in float64, over caches whose other slots are poisoned."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels.paged_attention import eager as kernel
from kernels.paged_attention import paged_attention, plan_attention


@dataclass
class Case:
    """A random step: a cache whose live slots hold numbers and whose other slots hold NaN, and what must come out."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_tables: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    block_size: int
    num_kv_heads: int
    window: int | None
    expected: Tensor

    def run(self, dtype: torch.dtype = torch.float32) -> Tensor:
        plan = plan_attention(
            self.block_tables,
            self.query_start_loc,
            self.seq_lens,
            block_size=self.block_size,
            num_kv_heads=self.num_kv_heads,
            dtype=dtype,
            sliding_window=self.window,
        )
        caches = self.key_cache.to(dtype), self.value_cache.to(dtype)
        return paged_attention(self.query.to(dtype), *caches, plan, scale=0.3)


def random_case(
    lengths: list[tuple[int, int]],
    *,
    block_size: int = 16,
    heads: tuple[int, int] = (4, 2),
    head_size: int = 16,
    window: int | None = None,
    seed: int = 0,
) -> Case:
    """A step of requests given as (queries, keys). Blocks are scattered; the null block and what is unused is NaN."""
    generator = torch.Generator().manual_seed(seed)
    num_heads, num_kv_heads = heads
    widths = [-(-keys // block_size) for _, keys in lengths]
    num_blocks = sum(widths) + 3
    ids = (torch.randperm(num_blocks - 1, generator=generator) + 1).tolist()
    # What follows a request's last block in its table is another's business, here even out of range.
    block_tables = torch.full((len(lengths), max(widths) + 1), 10**6, dtype=torch.int32)
    caches = [torch.full((num_blocks, num_kv_heads, block_size, head_size), torch.nan).double() for _ in range(2)]
    queries, expected = [], []
    for request, (num_queries, num_keys) in enumerate(lengths):
        blocks = [ids.pop() for _ in range(widths[request])]
        block_tables[request, : len(blocks)] = torch.tensor(blocks)
        query, key, value = (
            torch.randn(n, h, head_size, generator=generator).double()
            for n, h in ((num_queries, num_heads), (num_keys, num_kv_heads), (num_keys, num_kv_heads))
        )
        first = 0 if window is None else max(0, num_keys - num_queries - window + 1)
        for position in range(first, num_keys):
            block, offset = blocks[position // block_size], position % block_size
            caches[0][block, :, offset], caches[1][block, :, offset] = key[position], value[position]
        queries.append(query)
        expected.append(_attend(query, key, value, window))
    lens = torch.tensor([num_queries for num_queries, _ in lengths])
    return Case(
        query=torch.cat(queries),
        key_cache=caches[0],
        value_cache=caches[1],
        block_tables=block_tables,
        query_start_loc=torch.cat((torch.zeros(1), lens.cumsum(0))).to(torch.int32),
        seq_lens=torch.tensor([num_keys for _, num_keys in lengths], dtype=torch.int32),
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        window=window,
        expected=torch.cat(expected),
    )


def _attend(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
    output = torch.empty_like(query)
    group_size = query.shape[1] // key.shape[1]
    for i in range(query.shape[0]):
        end = key.shape[0] - query.shape[0] + i + 1
        begin = 0 if window is None else max(0, end - window)
        for head in range(query.shape[1]):
            kv_head = head // group_size
            weights = torch.softmax(0.3 * key[begin:end, kv_head] @ query[i, head], dim=0)
            output[i, head] = weights @ value[begin:end, kv_head]
    return output


MIXED = [(1, 1), (5, 5), (1, 37), (3, 40), (1, 16), (17, 17), (1, 17), (1, 100), (2, 33)]


@pytest.mark.parametrize("block_size", [1, 4, 16, 24])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("window", [None, 1, 7, 64])
def test_mixed_batch_matches_the_reference(block_size: int, heads: tuple[int, int], window: int | None) -> None:
    case = random_case(MIXED, block_size=block_size, heads=heads, window=window)
    torch.testing.assert_close(case.run().double(), case.expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_random_ragged_batches_match_the_reference(seed: int) -> None:
    generator = torch.Generator().manual_seed(100 + seed)

    def up_to(n: int) -> int:
        return int(torch.randint(1, n + 1, (), generator=generator))

    lengths = []
    for _ in range(up_to(12)):
        keys = up_to(90)
        lengths.append((up_to(keys) if up_to(2) == 1 else 1, keys))
    case = random_case(lengths, block_size=up_to(20), head_size=2 * up_to(16), seed=seed)
    torch.testing.assert_close(case.run().double(), case.expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 9])
def test_a_chunk_longer_than_a_tile(monkeypatch: pytest.MonkeyPatch, window: int | None) -> None:
    monkeypatch.setattr(kernel, "PREFILL_TILE", 8)
    case = random_case([(30, 45), (8, 8), (1, 60), (9, 60)], window=window)
    torch.testing.assert_close(case.run().double(), case.expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    case = random_case(MIXED)
    tolerance = 1e-12 if dtype is torch.float64 else 0.03
    torch.testing.assert_close(case.run(dtype).double(), case.expected, atol=tolerance, rtol=tolerance)


def test_decodes_of_unlike_length_share_no_padding() -> None:
    case = random_case([(1, 100), (1, 3), (1, 90), (1, 2), (1, 51)])
    plan = plan_attention(
        case.block_tables, case.query_start_loc, case.seq_lens, block_size=16, num_kv_heads=2, dtype=torch.float32
    )
    assert [group.queries.tolist() for group in plan.decodes] == [[0, 2, 4], [1, 3]]
    torch.testing.assert_close(case.run().double(), case.expected, atol=1e-5, rtol=1e-5)


def test_groups_of_decodes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "DECODE_GROUP_KEYS", 64)
    case = random_case([(1, 30)] * 6)
    plan = plan_attention(
        case.block_tables, case.query_start_loc, case.seq_lens, block_size=16, num_kv_heads=2, dtype=torch.float32
    )
    assert [group.queries.numel() for group in plan.decodes] == [2, 2, 2]
    torch.testing.assert_close(case.run().double(), case.expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_lens": torch.tensor([5])}, "block_tables must be"),
        ({"query_start_loc": torch.tensor([0, 9, 10])}, "each request needs 1 to seq_len queries"),
        ({"query_start_loc": torch.tensor([0, 0, 4])}, "each request needs 1 to seq_len queries"),
        ({"block_tables": torch.zeros(2, 0)}, "cannot hold a sequence of 40 tokens"),
        ({"sliding_window": 0}, "sliding_window must be"),
    ],
)
def test_a_step_that_contradicts_itself_is_refused(change: dict[str, object], message: str) -> None:
    step: dict[str, object] = {
        "block_tables": torch.zeros(2, 3),
        "query_start_loc": torch.tensor([0, 3, 4]),
        "seq_lens": torch.tensor([5, 40]),
    }
    with pytest.raises(ValueError, match=message):
        plan_attention(block_size=16, num_kv_heads=2, dtype=torch.float32, **{**step, **change})  # type: ignore[arg-type]


def test_tensors_that_do_not_fit_the_plan_are_refused() -> None:
    case = random_case([(2, 5)])
    case.query = case.query[:1]
    with pytest.raises(ValueError, match="query must be"):
        case.run()
    case = random_case([(2, 5)])
    case.value_cache = case.value_cache[:, :, :8]
    with pytest.raises(ValueError, match="key_cache and value_cache must be"):
        case.run()
