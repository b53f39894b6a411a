"""Attention of the CPU kernels against its definition, and the same bits for a query in whatever step it comes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.cpu.operations import Cache, Heads, Step, attention
from kernels.paged_attention.reference import attention_reference


class Requests:
    """Requests of the given lengths, with random queries, keys and values and a poisoned cache."""

    def __init__(
        self,
        lengths: list[int],
        *,
        block_size: int = 16,
        heads: tuple[int, int] = (6, 2),
        head_size: int = 64,
        dtype: torch.dtype = torch.float32,
        window: int = 0,
        soft_cap: float = 0.0,
        slopes: Tensor | None = None,
    ) -> None:
        self.block_size, self.window, self.slopes = block_size, window, slopes
        (query_heads, kv_heads), blocks = heads, -(-max(lengths) // block_size)
        self.tables = torch.randperm(len(lengths) * blocks).int().view(len(lengths), blocks) + 1
        count = len(lengths) * blocks + 1
        self.keys = torch.full((count, kv_heads, head_size, block_size), float("nan"), dtype=dtype)
        self.values = torch.full((count, kv_heads, block_size, head_size), float("nan"), dtype=dtype)
        self.query = [torch.randn(length, query_heads, head_size) for length in lengths]
        self.new = [torch.randn(2, length, kv_heads, head_size) for length in lengths]
        pointer = None if slopes is None else slopes.data_ptr()
        self.heads = Heads(pointer, query_heads, kv_heads, head_size, window, head_size**-0.5, soft_cap)
        self.soft_cap = soft_cap

    def step(self, spans: dict[int, range]) -> dict[int, Tensor]:
        """Run some tokens of some requests; the outputs by request."""
        positions = {request: torch.arange(span.start, span.stop) for request, span in spans.items()}
        size = self.block_size
        # Far behind a request's blocks its table holds what is no block at all.
        tables = torch.cat((self.tables, torch.full_like(self.tables[:, :1], 1 << 30)), dim=1)
        step = Step(
            tables[list(spans)],
            torch.tensor([0, *(len(span) for span in spans.values())]).cumsum(0),
            torch.tensor([span.stop for span in spans.values()]),
            torch.cat([self.tables[r].long()[p // size] * size + p % size for r, p in positions.items()]),
            group=self.heads.query_heads // self.heads.kv_heads,
        )
        key, value = torch.cat([self.new[r][:, p] for r, p in positions.items()], dim=1)
        query = torch.cat([self.query[r][p] for r, p in positions.items()])
        output = attention(query, key, value, self.heads, Cache.of(self.keys, self.values), step)
        return dict(zip(spans, output.split([len(span) for span in spans.values()]), strict=True))

    def expected(self, request: int, span: range) -> Tensor:
        """By the definition, over what the cache holds."""
        return attention_reference(
            self.query[request][span.start : span.stop],
            self.keys.transpose(2, 3),
            self.values,
            self.tables[request][None],
            torch.tensor([0, len(span)]),
            torch.tensor([span.stop]),
            scale=self.heads.scale,
            sliding_window=self.window or None,
            soft_cap=self.soft_cap or None,
            alibi_slopes=self.slopes,
        )

    def check(self, spans: dict[int, range]) -> None:
        for request, output in self.step(spans).items():
            wanted = self.expected(request, spans[request])
            torch.testing.assert_close(output.double(), wanted, atol=2e-5, rtol=2e-5)


STEPS = [{0: range(40), 1: range(7)}, {1: range(7, 30), 0: range(40, 41)}, {0: range(41, 42), 1: range(30, 31)}]
LENGTHS = [42, 31]


@pytest.mark.parametrize("block_size", [1, 8, 12, 16, 24, 32, 64, 256])
def test_block_sizes(block_size: int, threads: int) -> None:
    requests = Requests(LENGTHS, block_size=block_size)
    for spans in STEPS:
        requests.check(spans)


@pytest.mark.parametrize("head_size", [16, 20, 32, 80, 96, 128, 256])
def test_head_sizes(head_size: int) -> None:
    requests = Requests(LENGTHS, head_size=head_size)
    for spans in STEPS:
        requests.check(spans)


@pytest.mark.parametrize("heads", [(1, 1), (8, 1), (8, 8), (9, 3), (64, 1)])
def test_shared_kv_heads(heads: tuple[int, int]) -> None:
    requests = Requests(LENGTHS, heads=heads, head_size=32)
    for spans in STEPS:
        requests.check(spans)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_caches_are_rounded_once(dtype: torch.dtype) -> None:
    requests = Requests(LENGTHS, dtype=dtype)
    for spans in STEPS:
        requests.check(spans)  # whose reference reads the rounded cache
    written = requests.keys[requests.tables[1][0].long(), :, :, :7].permute(2, 0, 1)
    assert torch.equal(written, requests.new[1][0, :7].to(dtype))


@pytest.mark.parametrize("window", [1, 5, 16, 17, 600])
def test_sliding_windows(window: int) -> None:
    requests = Requests([700, 31], window=window, head_size=16)
    requests.check({0: range(690), 1: range(20)})
    requests.check({0: range(690, 700), 1: range(20, 21)})


def test_soft_cap_and_alibi() -> None:
    for soft_cap, slopes in ((3.0, None), (0.0, torch.rand(6)), (2.0, torch.rand(6))):
        requests = Requests(LENGTHS, soft_cap=soft_cap, slopes=slopes)
        for spans in STEPS:
            requests.check(spans)


def test_a_token_without_a_slot_is_not_written() -> None:
    requests = Requests([5])
    before = requests.keys.clone()
    step = Step(requests.tables, torch.tensor([0, 1]), torch.tensor([1]), torch.tensor([-1]), group=3)
    key, value = requests.new[0][:, :1]
    cache = Cache.of(requests.keys, requests.values)
    attention(requests.query[0][:1], key, value, requests.heads, cache, step)
    assert torch.equal(before.isnan(), requests.keys.isnan())


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_query_has_the_same_bits_in_every_chunk_and_batch(dtype: torch.dtype, window: int) -> None:
    # Longer than a span, so that spans are merged.
    options: dict[str, Any] = {"dtype": dtype, "window": window, "head_size": 32}
    torch.manual_seed(1)
    whole = Requests([1100, 300], **options)
    together = whole.step({0: range(1100), 1: range(300)})
    torch.manual_seed(1)
    pieces = Requests([1100, 300], **options)
    before = torch.get_num_threads()
    ends = [1, 2, 17, 100, 511, 512, 513, 800, 1024, 1099, 1100]
    for threads, (begin, end) in enumerate(zip([0, *ends], ends)):  # noqa: B905
        torch.set_num_threads(1 + threads % 3)
        output = pieces.step({0: range(begin, end)})[0]
        assert torch.equal(output, together[0][begin:end]), (begin, end)
    for position in range(300):
        output = pieces.step({1: range(position, position + 1)})[1]
        assert torch.equal(output, together[1][position : position + 1]), position
    torch.set_num_threads(before)


def test_caches_that_do_not_fit_are_refused() -> None:
    keys, values = torch.zeros(3, 2, 64, 16), torch.zeros(3, 2, 16, 64)
    with pytest.raises(ValueError, match="do not fit together"):
        Cache.of(keys, keys)
    with pytest.raises(ValueError, match="must be float32, float16 or bfloat16"):
        Cache.of(keys.double(), values.double())
    with pytest.raises(ValueError, match="must be contiguous"):
        Cache.of(keys, values.transpose(2, 3).contiguous().transpose(2, 3))
