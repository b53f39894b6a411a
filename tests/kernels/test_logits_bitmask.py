"""Bitmasks against the bits of Python's integers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels.logits_bitmask import (
    apply_token_bitmask,
    apply_token_bitmask_by_bytes,
    apply_token_bitmask_reference,
    apply_token_bitmask_triton,
    expand_bitmask,
)


def allowed_by(words: list[int], vocab_size: int) -> list[bool]:
    return [bool(words[token // 32] >> (token % 32) & 1) for token in range(vocab_size)]


def random_words(rows: int, words: int) -> Tensor:
    return torch.randint(-(2**31), 2**31, (rows, words)).to(torch.int32)


def test_eight_tokens_of_one_word() -> None:
    word = torch.tensor([[0b10010010]], dtype=torch.int32)
    assert expand_bitmask(word, 8).int().tolist() == [[0, 1, 0, 0, 1, 0, 0, 1]]
    logits = torch.tensor([[2.0, 0.5, 1.0, 3.0, -1.0, 0.0, 2.5, 1.5]])
    apply_token_bitmask(logits, word, torch.tensor([0]))
    assert logits.tolist() == [[-math.inf, 0.5, -math.inf, -math.inf, -1.0, -math.inf, -math.inf, 1.5]]


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 100, 1060])
def test_every_bit_counts(vocab_size: int, device: str) -> None:
    words = random_words(2, -(-vocab_size // 32))
    allowed = torch.tensor([allowed_by(row, vocab_size) for row in words.tolist()])
    assert torch.equal(expand_bitmask(words, vocab_size), allowed)
    by_bytes = [apply_token_bitmask_by_bytes] if torch.device(device).type == "cpu" else []
    for apply in (apply_token_bitmask_reference, apply_token_bitmask_triton, *by_bytes):
        # The masked rows are the last and the first of three, and lie in a wider buffer.
        buffer = torch.randn(3, vocab_size + 5, device=device)
        before = buffer.clone()
        apply(buffer[:, :vocab_size], words.to(device), torch.tensor([2, 0], device=device))
        expected = before.cpu()
        expected[2, :vocab_size].masked_fill_(~allowed[0], -math.inf)
        expected[0, :vocab_size].masked_fill_(~allowed[1], -math.inf)
        assert torch.equal(buffer.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_masked_too(dtype: torch.dtype, device: str) -> None:
    words, logits = random_words(1, 2).to(device), torch.randn(1, 40, device=device).to(dtype)
    by_torch = logits.clone()
    apply_token_bitmask_reference(by_torch, words, torch.tensor([0], device=device))
    apply_token_bitmask_triton(logits, words, torch.tensor([0], device=device))
    assert torch.equal(logits, by_torch) and logits.isinf().any()


def test_no_rows_are_no_trouble(device: str) -> None:
    logits = torch.ones(2, 8, device=device)
    nothing = torch.empty(0, 1, dtype=torch.int32, device=device), torch.empty(0, dtype=torch.int64, device=device)
    apply_token_bitmask_reference(logits, *nothing)
    apply_token_bitmask_triton(logits, *nothing)
    assert (logits == 1).all()


def test_shapes_that_contradict_each_other_are_refused() -> None:
    logits, rows = torch.ones(2, 40), torch.tensor([0])
    with pytest.raises(ValueError, match=r"bitmask \[n, 2\] int32"):
        apply_token_bitmask(logits, torch.zeros(1, 1, dtype=torch.int32), rows)
    with pytest.raises(ValueError, match="int64"):
        apply_token_bitmask(logits, torch.zeros(1, 2, dtype=torch.int64), rows)
