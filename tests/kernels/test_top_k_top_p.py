"""Truncation against its definition, written out row by row in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels.top_k_top_p import mask_min_p, mask_min_p_triton, mask_top_k_top_p, mask_top_k_top_p_triton


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


def test_triton_keeps_the_same_without_a_sort(device: str) -> None:
    vocab_size = 1300  # of two blocks, the second one in part
    logits = 3 * torch.randn(7, vocab_size + 3)
    logits[:, vocab_size:] = math.nan
    logits = logits[:, :vocab_size]
    logits[1, ::3] = -math.inf
    logits[2] = (2 * logits[2]).round() / 2  # many are alike, and some are the two zeros
    logits[3] *= 1e-30
    top_k = torch.tensor([0, 1, 90, 50, vocab_size, 5000, 1200])
    top_p = torch.tensor([0.9, 0.5, 0.95, 0.3, 1.0, 1e-9, 0.999])
    by_triton = mask_top_k_top_p_triton(logits.to(device), top_k.to(device), top_p.to(device)).cpu()
    assert torch.equal(by_triton, mask_top_k_top_p(logits, top_k, top_p))
    assert [len(kept) for kept in _kept(by_triton)][1::4] == [1, 1]
    min_p = torch.tensor([0.1, 0.5, 0.01, 1.0, 0.0, 1e-6, 0.2])
    assert torch.equal(mask_min_p_triton(logits.to(device), min_p.to(device)).cpu(), mask_min_p(logits, min_p))


@pytest.mark.parametrize("seed", range(3))
def test_triton_ends_at_the_very_value(seed: int, device: str) -> None:
    torch.manual_seed(seed)
    # Neighbours in float32, over all magnitudes and both signs: no step between two of them may be passed over.
    magnitudes = 10.0 ** torch.randint(-38, 2, (3, 20)) * torch.where(torch.rand(3, 20) < 0.5, -1.0, 1.0)
    logits = torch.cat((magnitudes, magnitudes.nextafter(torch.tensor(math.inf)), torch.zeros(3, 2)), dim=1)
    logits[:, -1] = -0.0
    top_k = torch.randint(1, 42, (3,))
    top_p = torch.tensor([1.0, 1.0, 0.6])
    by_triton = mask_top_k_top_p_triton(logits.to(device), top_k.to(device), top_p.to(device)).cpu()
    assert torch.equal(by_triton, mask_top_k_top_p(logits, top_k, top_p))


def test_triton_leaves_hidden_rows_hidden(device: str) -> None:
    logits = torch.full((2, 5), -math.inf)
    logits[1, 3] = 2.0
    top_k, top_p = torch.tensor([2, 3], device=device), torch.tensor([0.5, 0.9], device=device)
    assert torch.equal(mask_top_k_top_p_triton(logits.to(device), top_k, top_p).cpu(), logits)
    assert torch.equal(mask_min_p_triton(logits.to(device), top_p).cpu(), logits)


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
