"""Gumbel-max sampling against its formula in float64, and against the distribution that it is to draw from."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.gumbel_sampling import gumbel_max, gumbel_max_triton
from kernels.philox import Stream, uniform

Draw = Callable[[Tensor, Tensor, Tensor, Tensor, Stream], Tensor]

SEEDS = torch.tensor([0, 5, 2**40 + 5, -1, 7])
POSITIONS = torch.tensor([0, 7, 7, 1000, 2])
TEMPERATURE = torch.tensor([1.0, 0.0, 0.3, 2.0, 1e-3])


def by_formula(logits: Tensor, stream: Stream) -> list[int]:
    noise = -torch.log(-torch.log(uniform(SEEDS, POSITIONS, stream, logits.shape[1]).double()))
    scores = [
        row / scale + row_noise if scale > 0 else row
        for row, scale, row_noise in zip(logits.double(), TEMPERATURE.tolist(), noise, strict=True)
    ]
    return [int(score.argmax()) for score in scores]


def drawn(
    draw: Draw, logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, stream: Stream = Stream.TARGET
) -> Tensor:
    """Tokens, with all given moved to where the logits are."""
    device = logits.device
    return draw(logits, temperature.to(device), seeds.to(device), positions.to(device), stream)


@pytest.mark.parametrize("stream", [Stream.TARGET, Stream.DRAFT])
@pytest.mark.parametrize("vocab_size", [1, 37, 1500])
def test_tokens_are_those_of_the_formula(stream: Stream, vocab_size: int, device: str) -> None:
    buffer = torch.full((5, vocab_size + 3), math.nan)
    logits = buffer[:, :vocab_size]
    logits.copy_(3 * torch.randn(5, vocab_size))
    expected = by_formula(logits, stream)
    assert gumbel_max(logits, TEMPERATURE, SEEDS, POSITIONS, stream).tolist() == expected
    moved = buffer.to(device)[:, :vocab_size]
    assert drawn(gumbel_max_triton, moved, TEMPERATURE, SEEDS, POSITIONS, stream).tolist() == expected


def test_few_visible_tokens_draw_the_same_noise_as_all(device: str) -> None:
    logits = torch.full((5, 300), -math.inf)
    logits[:, [3, 10, 77, 78, 299]] = torch.randn(5, 5)
    expected = by_formula(logits, Stream.TARGET)
    for draw in (gumbel_max, gumbel_max_triton):
        assert drawn(draw, logits.to(device), TEMPERATURE, SEEDS, POSITIONS).tolist() == expected


def test_of_equal_logits_a_greedy_row_takes_the_first(device: str) -> None:
    logits = torch.zeros(2, 1200)
    logits[0, [40, 41, 1100]] = 1.0
    rows = torch.zeros(2, dtype=torch.int64)
    for draw in (gumbel_max, gumbel_max_triton):
        assert drawn(draw, logits.to(device), rows.float(), rows, rows).tolist() == [40, 0]


def test_rows_without_a_finite_logit_get_a_token_of_the_vocabulary(device: str) -> None:
    logits = torch.tensor([[-math.inf] * 5, [math.nan] * 5, [1.0, math.nan, -math.inf, 2.0, 0.0]])
    rows = torch.zeros(3, dtype=torch.int64)
    for scale in (0.0, 1.0):
        for draw in (gumbel_max, gumbel_max_triton):
            tokens = drawn(draw, logits.to(device), torch.full((3,), scale), rows, rows)
            assert ((tokens >= 0) & (tokens < 5)).all()


def test_tokens_are_drawn_as_often_as_the_softmax_says() -> None:
    logits, draws = torch.randn(8), 20_000
    seeds = torch.arange(draws)
    tokens = gumbel_max(logits.expand(draws, 8), torch.full((draws,), 0.7), seeds, seeds * 0, Stream.TARGET)
    expected = draws * torch.softmax(logits.double() / 0.7, dim=0)
    chi_square = ((torch.bincount(tokens, minlength=8) - expected) ** 2 / expected).sum()
    assert chi_square < 24.3  # the 99.9 % quantile for 7 degrees of freedom


def test_no_rows_are_no_trouble(device: str) -> None:
    nothing = torch.empty(0, dtype=torch.int64, device=device)
    for draw in (gumbel_max, gumbel_max_triton):
        logits = torch.empty(0, 9, device=device)
        assert draw(logits, nothing.float(), nothing, nothing, Stream.TARGET).shape == (0,)


def test_shapes_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="logits must be"):
        gumbel_max(torch.ones(2, 4), torch.ones(2), SEEDS[:2], POSITIONS[:1], Stream.TARGET)
