"""Truncation against its definition, written out row by row in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels.top_k_top_p import mask_min_p, mask_top_k_top_p


def _kept(masked: Tensor) -> list[set[int]]:
    return [set(torch.nonzero(row > -math.inf).flatten().tolist()) for row in masked]


def _expected(row: Tensor, k: int, p: float) -> set[int]:
    order = sorted(range(row.numel()), key=lambda token: -row[token].item())
    if k > 0:
        order = order[:k]
    if p >= 1.0:
        return set(order)
    probs = torch.softmax(row.double()[order], dim=0).tolist()
    kept, reached = set(), 0.0
    for token, prob in zip(order, probs, strict=True):
        if reached >= p:
            break
        kept.add(token)
        reached += prob
    return kept


@pytest.mark.parametrize("seed", range(6))
def test_top_k_then_top_p(seed: int) -> None:
    torch.manual_seed(seed)
    logits = 3 * torch.randn(6, 200)
    top_k = torch.tensor([0, 1, 5, 50, 200, 1000])
    top_p = torch.tensor([1.0, 0.9, 0.5, 1e-9, 0.999, 0.3])[torch.randperm(6)]
    masked = mask_top_k_top_p(logits, top_k, top_p)
    for row in range(6):
        assert _kept(masked)[row] == _expected(logits[row], int(top_k[row]), float(top_p[row]))
    visible = masked > -math.inf
    assert torch.equal(masked[visible], logits[visible])


def test_tokens_as_likely_as_the_last_one_kept_are_kept() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0]])
    assert _kept(mask_top_k_top_p(logits, torch.tensor([2]), torch.tensor([1.0]))) == [{1, 2, 3}]


def test_what_is_hidden_already_stays_hidden() -> None:
    logits = torch.tensor([[1.0, -math.inf, 2.0, -math.inf]])
    assert _kept(mask_top_k_top_p(logits, torch.tensor([3]), torch.tensor([1.0]))) == [{0, 2}]


def test_min_p_compares_with_the_likeliest() -> None:
    probs = torch.tensor([[0.6, 0.3, 0.07, 0.03], [0.25, 0.25, 0.25, 0.25]])
    assert _kept(mask_min_p(probs.log(), torch.tensor([0.1, 1.0]))) == [{0, 1, 2}, {0, 1, 2, 3}]
    assert _kept(mask_min_p(probs.log(), torch.tensor([0.0, 0.0]))) == [{0, 1, 2, 3}, {0, 1, 2, 3}]


def test_a_row_keeps_the_same_alone() -> None:
    logits, top_k, top_p = torch.randn(5, 64), torch.tensor([0, 3, 9, 64, 1]), torch.tensor([0.2, 1.0, 0.7, 0.9, 0.5])
    together = mask_top_k_top_p(logits, top_k, top_p)
    for row in range(5):
        one = slice(row, row + 1)
        assert torch.equal(mask_top_k_top_p(logits[one], top_k[one], top_p[one]), together[one])


def test_the_logits_given_are_left_alone() -> None:
    logits = torch.randn(2, 16)
    before = logits.clone()
    mask_top_k_top_p(logits, torch.tensor([2, 3]), torch.tensor([0.5, 0.5]))
    mask_min_p(logits, torch.tensor([0.5, 0.5]))
    assert torch.equal(logits, before)


def test_parameters_that_do_not_match_the_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="top_p must be"):
        mask_top_k_top_p(torch.ones(2, 4), torch.ones(2, dtype=torch.long), torch.ones(3))
    with pytest.raises(ValueError, match="logits must be"):
        mask_min_p(torch.ones(4), torch.ones(1))
