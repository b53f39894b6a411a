"""Paged attention in Triton against its definition in float64.

Memory that a kernel is to write is full of NaN (the fixture `device`), as are the slots that no query looks at.
"""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.paged_attention import launch
from kernels.paged_attention.launch import paged_attention_triton
from kernels.paged_attention.tiling import MAX_SPLITS, Tiling, choose_num_splits, num_tiles
from tests.kernels.attention_cases import SCALE, TOLERANCE, Case, random_case

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def run(case: Case, device: str, **options: object) -> Tensor:
    if "max_query_len" not in options:
        options["max_query_len"] = int(case.query_start_loc.diff().max())
        options["max_seq_len"] = int(case.seq_lens.max())
    tensors = case.query, case.key_cache, case.value_cache, case.block_tables, case.query_start_loc, case.seq_lens
    return paged_attention_triton(
        *(tensor.to(device) for tensor in tensors),
        scale=SCALE,
        sliding_window=case.window,
        soft_cap=case.soft_cap,
        alibi_slopes=None if case.alibi_slopes is None else case.alibi_slopes.to(device),
        **options,  # type: ignore[arg-type]
    )


@pytest.fixture
def short_splits(monkeypatch: pytest.MonkeyPatch) -> int:
    """Keys of a split; contexts of the tests are too short for what pays on a GPU."""
    monkeypatch.setattr(launch, "MIN_SPLIT_KEYS", 64)
    return 64


@pytest.mark.parametrize(
    ("block_size", "heads", "window"),
    [
        (8, (4, 4), None),
        (16, (4, 2), 1),
        (24, (6, 2), 7),
        (32, (3, 1), None),
        (100, (8, 2), 64),
        (256, (7, 1), None),
        (1, (2, 1), 33),
    ],
)
def test_mixed_batch_matches_the_definition(
    block_size: int, heads: tuple[int, int], window: int | None, device: str
) -> None:
    lengths = [(1, 1), (5, 5), (1, 37), (17, 17), (1, 16), (3, 40), (1, 100)]
    case = random_case(lengths, block_size=block_size, heads=heads, window=window)
    case.check(run(case, device))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_size", [32, 80, 96, 256])
def test_dtypes_and_head_sizes(dtype: torch.dtype, head_size: int, device: str) -> None:
    case = random_case([(1, 70), (6, 9)], heads=(3, 1), head_size=head_size, dtype=dtype)
    case.check(run(case, device))


@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_whatever_a_step_is_made_of(data: st.DataObject, device: str) -> None:
    length = st.integers(1, 70).flatmap(lambda keys: st.tuples(st.sampled_from([1, min(keys, 4), keys]), st.just(keys)))
    group_size, num_kv_heads = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 2))
    case = random_case(
        data.draw(st.lists(length, min_size=1, max_size=3)),
        block_size=data.draw(st.integers(8, 40)),
        heads=(group_size * num_kv_heads, num_kv_heads),
        head_size=data.draw(st.integers(2, 40)),
        dtype=data.draw(st.sampled_from(DTYPES)),
        window=data.draw(st.none() | st.integers(1, 90)),
        soft_cap=data.draw(st.sampled_from([None, 1.0, 30.0])),
        alibi=data.draw(st.booleans()),
    )
    case.check(run(case, device, num_splits=data.draw(st.sampled_from([1, 1, 3]))))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 150])
def test_a_split_context_gives_what_a_whole_one_gives(
    dtype: torch.dtype, window: int | None, short_splits: int, device: str
) -> None:
    lengths = [(1, 260), (1, 10), (2, 200)]
    assert lengths[0][1] > 4 * short_splits and lengths[1][1] < short_splits
    case = random_case(lengths, heads=(2, 1), dtype=dtype, window=window)
    split, whole = run(case, device, num_splits=5), run(case, device, num_splits=1)
    case.check(split)
    torch.testing.assert_close(split, whole, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_soft_cap_and_alibi_survive_a_split(short_splits: int, device: str) -> None:
    case = random_case([(1, 3 * short_splits), (2, 100)], soft_cap=1.5, alibi=True)
    case.check(run(case, device, num_splits=3))


@pytest.mark.parametrize("num_splits", [1, 2])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_padding_is_neither_read_nor_written(
    num_splits: int, index_dtype: torch.dtype, short_splits: int, device: str
) -> None:
    """As a captured graph pads: requests without queries, requests of length 0 with one query, and loose tokens."""
    case = random_case([(1, 2 * short_splits), (4, 9), (1, 5)], heads=(2, 1))
    expected, num_tokens = case.expected(), len(case.query)
    assert num_tokens == 6
    nowhere = torch.full((1, case.block_tables.shape[1]), 10**6, dtype=torch.int32)
    table = torch.cat((case.block_tables[:2], nowhere, case.block_tables[2:], nowhere, nowhere, nowhere))
    case.block_tables = table.to(index_dtype)
    case.seq_lens = torch.tensor([2 * short_splits, 9, 0, 5, 0, 0, 0], dtype=index_dtype)
    case.query_start_loc = torch.tensor([0, 1, 5, 5, 6, 7, 8, 8], dtype=index_dtype)
    case.query = torch.cat((case.query, torch.full((5, *case.query.shape[1:]), torch.nan)))
    output = torch.full_like(case.query, 7.0, device=device)
    for max_query_len in (4, 64):
        run(case, device, num_splits=num_splits, output=output, max_query_len=max_query_len, max_seq_len=10**4)
        torch.testing.assert_close(output[:num_tokens].cpu().double(), expected, atol=2e-5, rtol=2e-5)
        assert (output[num_tokens:] == 7.0).all()


def test_a_padded_batch_of_decodes(device: str) -> None:
    case = random_case([(1, 30), (1, 3), (1, 1), (1, 1)])
    expected = case.expected()
    case.seq_lens[2:] = 0
    case.block_tables[2:] = 10**6
    output = torch.full_like(case.query, 7.0, device=device)
    run(case, device, output=output, max_query_len=1, max_seq_len=30)
    torch.testing.assert_close(output[:2].cpu().double(), expected[:2], atol=2e-5, rtol=2e-5)
    assert (output[2:] == 7.0).all()


def test_strided_queries_outputs_and_caches(device: str) -> None:
    case = random_case([(1, 30), (6, 20)], heads=(4, 2), head_size=24)
    expected = case.expected()
    # A query as it is sliced out of a fused projection; keys and values as the halves of one tensor of blocks.
    fused = torch.full((7, 9, 24), torch.nan)
    fused[:, 1:5] = case.query
    both = torch.stack((case.key_cache, case.value_cache), dim=1)
    into = torch.zeros(7, 6, 30, device=device)
    case.query, case.key_cache, case.value_cache = fused[:, 1:5], both[:, 0], both[:, 1]
    assert not case.query.is_contiguous() and not case.key_cache.is_contiguous()
    run(case, device, output=into[:, 2:, :24])
    torch.testing.assert_close(into[:, 2:, :24].cpu().double(), expected, atol=2e-5, rtol=2e-5)
    assert not into[:, :2].any() and not into[:, :, 24:].any()


def test_nothing_is_read_back_to_the_host(device: str) -> None:
    class Watch(TorchDispatchMode):
        seen: list[str] = []  # noqa: RUF012

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.seen.append(func.name())
            return func(*args, **(kwargs or {}))

    case = random_case([(1, 30), (6, 20)])
    with Watch() as watch:
        run(case, device, num_splits=2, max_query_len=6, max_seq_len=30)
    assert "aten::empty_like" in watch.seen
    assert "aten::_local_scalar_dense" not in watch.seen and "aten::nonzero" not in watch.seen


def test_an_empty_step_gives_an_empty_output(device: str) -> None:
    case = random_case([(1, 3)])
    case.query, case.query_start_loc = case.query[:0], torch.tensor([0])
    case.block_tables, case.seq_lens = case.block_tables[:0], case.seq_lens[:0]
    assert run(case, device, max_query_len=1, max_seq_len=1).shape == (0, 4, 16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(2, 4, 16).double()}, "query must be"),
        ({"query": torch.zeros(2, 4, 32)[..., ::2]}, "query must be"),
        ({"query": torch.zeros(2, 3, 16)}, "key_cache must be"),
        ({"query": torch.zeros(2, 4, 16).half()}, "one dtype"),
        ({"value_cache": torch.zeros(4, 2, 8, 16)}, "one shape, one layout"),
        ({"output": torch.zeros(2, 4, 16).half()}, "output must be"),
        ({"block_tables": torch.zeros(2, 1, dtype=torch.int32)}, "block_tables must be"),
        ({"seq_lens": torch.tensor([5.0])}, "seq_lens must be int32 or int64"),
        ({"query_start_loc": torch.zeros(4, dtype=torch.int32)[::2]}, "query_start_loc must be contiguous"),
        ({"sliding_window": 0}, "sliding_window must be"),
        ({"soft_cap": -1.0}, "soft_cap must be"),
        ({"alibi_slopes": torch.ones(3)}, "alibi_slopes must be"),
        ({"num_splits": 0}, "num_splits must be"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    case = random_case([(2, 5)])
    step: dict[str, object] = {
        "query": case.query,
        "key_cache": case.key_cache,
        "value_cache": case.value_cache,
        "block_tables": case.block_tables,
        "query_start_loc": case.query_start_loc,
        "seq_lens": case.seq_lens,
        "max_query_len": 2,
        "max_seq_len": 5,
        "scale": SCALE,
    }
    with pytest.raises(ValueError, match=message):
        paged_attention_triton(**{**step, **change})  # type: ignore[arg-type]


def test_heads_that_are_too_large_are_refused() -> None:
    case = random_case([(1, 2)], head_size=257)
    with pytest.raises(ValueError, match="head_size must be at most 256"):
        run(case, "cpu")


@given(query_lens=st.lists(st.integers(0, 40), min_size=1, max_size=12), tile_queries=st.integers(1, 16))
def test_there_are_tiles_enough_for_every_request(query_lens: list[int], tile_queries: int) -> None:
    starts = [0, *accumulate(query_lens)]
    tiles = num_tiles(tile_queries, 41, starts[-1], len(query_lens))
    first_tiles = [start // tile_queries + request for request, start in enumerate(starts[:-1])]
    for first, following, query_len in zip(first_tiles, [*first_tiles[1:], tiles], query_lens, strict=True):
        assert first + -(-query_len // tile_queries) <= following


@pytest.mark.parametrize("group_size", [1, 3, 8, 71])
@pytest.mark.parametrize("max_query_len", [1, 4, 2048])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_a_tile_holds_the_whole_group(group_size: int, max_query_len: int, itemsize: int) -> None:
    tiling = Tiling.of(96, group_size, max_query_len, itemsize)
    assert tiling.block_m >= max(16, group_size) and tiling.block_d == 128
    assert tiling.block_m // group_size * group_size <= tiling.block_m


def test_contexts_are_split_only_where_it_pays() -> None:
    assert choose_num_splits(num_programs=8, most_keys=100_000, num_processors=132) == 33
    assert choose_num_splits(num_programs=1, most_keys=10**6, num_processors=132) == MAX_SPLITS
    assert choose_num_splits(num_programs=8, most_keys=1500, num_processors=132) == 3
    assert choose_num_splits(num_programs=8, most_keys=500, num_processors=132) == 1
    assert choose_num_splits(num_programs=256, most_keys=100_000, num_processors=132) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_captured_graph_serves_other_lengths(dtype: torch.dtype) -> None:
    case = random_case([(1, 2000), (1, 700), (1, 3)], heads=(8, 2), head_size=64, dtype=dtype)
    fixed = random_case([(1, 1), (1, 1), (1, 1)], heads=(8, 2), head_size=64, dtype=dtype)
    fixed.key_cache, fixed.value_cache = case.key_cache, case.value_cache
    tensors = {
        name: getattr(fixed, name).cuda()
        for name in ("query", "key_cache", "value_cache", "query_start_loc", "seq_lens")
    }
    tensors["block_tables"] = torch.zeros_like(case.block_tables).cuda()

    def attend() -> Tensor:
        return paged_attention_triton(**tensors, max_query_len=1, max_seq_len=4096, scale=SCALE)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        attend()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = attend()
    for name in ("query", "seq_lens", "block_tables"):
        tensors[name].copy_(getattr(case, name))
    graph.replay()
    case.check(output)
