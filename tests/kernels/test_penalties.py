"""Penalties against a loop in double precision that follows the definition word for word."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels.penalties import apply_penalties, apply_penalties_triton

VOCAB_SIZE = 50


def by_definition(logits: Tensor, prompt: list[int], output: list[int], p: float, f: float, r: float) -> list[float]:
    penalised = logits.double().tolist()
    for token in {*prompt, *output}:
        penalised[token] = penalised[token] / r if penalised[token] > 0 else penalised[token] * r
    for token in set(output):
        penalised[token] -= f * output.count(token) + p
    return penalised


def counts(rows: list[list[int]]) -> Tensor:
    """[rows, vocabulary]."""
    return torch.stack([torch.bincount(torch.tensor(row, dtype=torch.int64), minlength=VOCAB_SIZE) for row in rows])


ROWS = [
    ([1, 2, 3, 3], [4, 4, 4, 5, 1], 0.5, 0.25, 1.3),
    ([7], [], 1.0, 1.0, 2.0),
    ([], [7, 7, 8], -2.0, -0.5, 1.0),
    ([9, 9, 9], [9], 0.0, 0.0, 0.7),
    ([1, 2], [3, 4], 0.0, 0.0, 1.0),
    (list(range(50)), list(range(0, 50, 2)) * 2, 2.0, 2.0, 5.0),
]


def penalise(logits: Tensor, rows: list[tuple[list[int], list[int], float, float, float]]) -> Tensor:
    prompts, outputs, *penalties = zip(*rows, strict=True)
    p, f, r = (torch.tensor(values) for values in penalties)
    return apply_penalties(logits, counts(list(prompts)), counts(list(outputs)), p, f, r)


def test_they_are_what_their_definition_says() -> None:
    logits = 5 * torch.randn(len(ROWS), VOCAB_SIZE)
    before = logits.clone()
    expected = torch.tensor([by_definition(row, *each) for row, each in zip(logits, ROWS, strict=True)])
    torch.testing.assert_close(penalise(logits, ROWS), expected.float(), rtol=1e-6, atol=1e-6)
    assert torch.equal(logits, before)


def test_neutral_ones_change_no_bit() -> None:
    logits = torch.randn(1, VOCAB_SIZE)
    assert torch.equal(penalise(logits, [([1, 2], [2, 3], 0.0, 0.0, 1.0)]), logits)


def test_what_is_hidden_stays_hidden() -> None:
    logits = torch.full((1, VOCAB_SIZE), -math.inf)
    assert penalise(logits, [([1, 2], [2, 3], -2.0, -2.0, 0.5)]).max() == -math.inf


def test_no_row_depends_on_another() -> None:
    logits = torch.randn(len(ROWS), VOCAB_SIZE)
    together = penalise(logits, ROWS)
    assert torch.equal(penalise(logits.flip(0), ROWS[::-1]).flip(0), together)
    for index, row in enumerate(ROWS):
        assert torch.equal(penalise(logits[index : index + 1], [row])[0], together[index])


def test_some_tokens_can_be_looked_at_alone() -> None:
    prompt, output, *penalties = ROWS[0]
    logits = torch.randn(1, VOCAB_SIZE)
    tokens = sorted({*prompt, *output})
    p, f, r = (torch.tensor([value]) for value in penalties)
    prompt_counts, output_counts = counts([prompt])[:, tokens], counts([output])[:, tokens]
    some = apply_penalties(logits[:, tokens], prompt_counts, output_counts, p, f, r)
    assert torch.equal(some, penalise(logits, ROWS[:1])[:, tokens])


def test_triton_gives_the_same_bits(device: str) -> None:
    size = 1030
    logits = 5 * torch.randn(3, size + 3)[:, :size]
    logits[0, ::7] = -math.inf
    prompt_counts, output_counts = torch.randint(-2, 4, (2, 3, size)).clamp_(min=0).int()
    penalties = torch.tensor([0.3, -1.1, 0.0]), torch.tensor([0.7, -0.2, 0.0]), torch.tensor([1.3, 0.6, 1.0])
    given = logits, prompt_counts, output_counts, *penalties
    by_triton = apply_penalties_triton(*(tensor.to(device) for tensor in given))
    assert torch.equal(by_triton.cpu(), apply_penalties(*given))


def test_shapes_are_checked() -> None:
    one = counts([[1]])
    with pytest.raises(ValueError, match="must be alike"):
        apply_penalties(torch.zeros(2, VOCAB_SIZE), one, one, *[torch.ones(2)] * 3)
