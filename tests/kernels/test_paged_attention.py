"""Paged attention in torch against its definition in float64, and the definition against torch's own attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.paged_attention import AttentionPlan, eager, paged_attention, plan_attention
from tests.kernels.attention_cases import MIXED, SCALE, Case, random_case


def planned(case: Case) -> AttentionPlan:
    return plan_attention(
        case.block_tables,
        case.query_start_loc,
        case.seq_lens,
        block_size=case.key_cache.shape[2],
        num_kv_heads=case.key_cache.shape[1],
        dtype=case.query.dtype,
        sliding_window=case.window,
        alibi_slopes=case.alibi_slopes,
    )


def run(case: Case) -> Tensor:
    return paged_attention(case.query, case.key_cache, case.value_cache, planned(case), SCALE, case.soft_cap)


@pytest.mark.parametrize("window", [None, 4])
def test_the_definition_is_causal_attention_over_the_tokens_in_their_order(window: int | None) -> None:
    case = random_case([(9, 9)], block_size=4, heads=(4, 2), dtype=torch.float64, window=window)
    blocks = case.block_tables[0, :3]
    keys, values = (cache[blocks].transpose(1, 2).flatten(0, 1)[:9] for cache in (case.key_cache, case.value_cache))
    distance = torch.arange(9)[:, None] - torch.arange(9)
    expected = F.scaled_dot_product_attention(
        case.query.transpose(0, 1),
        keys.transpose(0, 1).repeat_interleave(2, dim=0),
        values.transpose(0, 1).repeat_interleave(2, dim=0),
        attn_mask=(distance >= 0) & (distance < (window or 9)),
        scale=SCALE,
    )
    torch.testing.assert_close(case.expected(), expected.transpose(0, 1))


def test_the_definition_caps_scores_and_then_adds_the_biases() -> None:
    case = random_case([(1, 6)], block_size=8, heads=(2, 1), dtype=torch.float64, soft_cap=0.7, alibi=True)
    keys, values = case.key_cache[case.block_tables[0, 0], 0, :6], case.value_cache[case.block_tables[0, 0], 0, :6]
    for head, slope in enumerate((0.5, 0.25)):
        scores = 0.7 * torch.tanh(SCALE * keys @ case.query[0, head] / 0.7) - slope * torch.arange(5, -1, -1)
        torch.testing.assert_close(case.expected()[0, head], torch.softmax(scores, dim=0) @ values)


@pytest.mark.parametrize("block_size", [1, 4, 16, 24])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("window", [None, 1, 7, 64])
def test_mixed_batch_matches_the_definition(block_size: int, heads: tuple[int, int], window: int | None) -> None:
    case = random_case(MIXED, block_size=block_size, heads=heads, window=window)
    case.check(run(case))


@pytest.mark.parametrize("soft_cap", [None, 0.5, 50.0])
@pytest.mark.parametrize("alibi", [False, True])
@pytest.mark.parametrize("window", [None, 7])
def test_soft_cap_and_alibi_match_the_definition(soft_cap: float | None, alibi: bool, window: int | None) -> None:
    case = random_case(MIXED, heads=(6, 2), window=window, soft_cap=soft_cap, alibi=alibi)
    case.check(run(case))


@pytest.mark.parametrize("seed", range(8))
def test_random_ragged_batches_match_the_definition(seed: int) -> None:
    torch.manual_seed(100 + seed)

    def up_to(n: int) -> int:
        return int(torch.randint(1, n + 1, ()))

    lengths = []
    for _ in range(up_to(12)):
        keys = up_to(90)
        lengths.append((up_to(keys) if up_to(2) == 1 else 1, keys))
    case = random_case(lengths, block_size=up_to(20), head_size=2 * up_to(16), alibi=up_to(2) == 1)
    case.check(run(case))


@pytest.mark.parametrize("options", [{}, {"window": 9}, {"soft_cap": 2.0}, {"alibi": True, "window": 9}])
def test_a_chunk_longer_than_a_tile(monkeypatch: pytest.MonkeyPatch, options: dict[str, object]) -> None:
    monkeypatch.setattr(eager, "PREFILL_TILE", 8)
    case = random_case([(30, 45), (8, 8), (1, 60), (9, 60)], **options)  # type: ignore[arg-type]
    case.check(run(case))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("alibi", [False, True])
def test_other_dtypes(dtype: torch.dtype, alibi: bool) -> None:
    case = random_case(MIXED, dtype=dtype, alibi=alibi)
    case.check(run(case))


def test_decodes_of_unlike_length_share_no_padding() -> None:
    case = random_case([(1, 100), (1, 3), (1, 90), (1, 2), (1, 51)])
    assert [group.queries.tolist() for group in planned(case).decodes] == [[0, 2, 4], [1, 3]]
    case.check(run(case))


def test_groups_of_decodes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "DECODE_GROUP_KEYS", 64)
    case = random_case([(1, 30)] * 6)
    assert [group.queries.numel() for group in planned(case).decodes] == [2, 2, 2]
    case.check(run(case))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_lens": torch.tensor([5])}, "block_tables must be"),
        ({"query_start_loc": torch.tensor([0, 9, 10])}, "each request needs 1 to seq_len queries"),
        ({"query_start_loc": torch.tensor([0, 0, 4])}, "each request needs 1 to seq_len queries"),
        ({"block_tables": torch.zeros(2, 0)}, "cannot hold a sequence of 40 tokens"),
        ({"sliding_window": 0}, "sliding_window must be"),
        ({"alibi_slopes": torch.ones(3)}, "alibi_slopes must be"),
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
    case = random_case([(2, 5)], alibi=True)
    plan = planned(case)
    caches = case.key_cache, case.value_cache
    with pytest.raises(ValueError, match="query must be"):
        paged_attention(case.query[:1], *caches, plan, SCALE)
    with pytest.raises(ValueError, match="ALiBi slopes of 4 heads"):
        paged_attention(case.query[:, :2], *caches, plan, SCALE)
    with pytest.raises(ValueError, match="key_cache and value_cache must be"):
        paged_attention(case.query, case.key_cache, case.value_cache[:, :, :8], plan, SCALE)
    with pytest.raises(ValueError, match="soft_cap must be"):
        paged_attention(case.query, *caches, plan, SCALE, soft_cap=0.0)
