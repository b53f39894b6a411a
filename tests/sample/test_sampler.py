"""The sampler: right distribution, repeatable noise, rows that do not touch each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.core.messages import NewRequestData, ScheduledRow
from engine.sample.sampler import SamplingMetadata, sample, truncated_logits
from engine.sampling_params import SamplingParams
from engine.worker.input_batch import InputBatch
from kernels import gumbel_sampling


def metadata_of(params: list[SamplingParams], num_outputs: list[int], vocab_size: int) -> SamplingMetadata:
    """What the batch makes of requests that have put out so many tokens already."""
    batch = InputBatch(len(params), max_model_len=64, block_size=16, vocab_size=vocab_size)
    for serial, (param, outputs) in enumerate(zip(params, num_outputs, strict=True)):
        new = NewRequestData(token_ids=[0] * (3 + outputs), num_prompt_tokens=3, sampling_params=param)
        batch.update(
            ScheduledRow(
                serial=serial,
                request_id=str(serial),
                num_scheduled_tokens=1,
                num_computed_tokens=0,
                block_ids=([],),
                new=new,
            )
        )
    rows = np.array([batch.row_of(serial) for serial in range(len(params))])
    return batch.sampling_metadata(rows, torch.device("cpu"))


def draw(logits: Tensor, params: SamplingParams, num_draws: int) -> Tensor:
    """Many draws from the same logits, each under a seed of its own: [num_draws]."""
    metadata = metadata_of([params.with_seed(1000 + i) for i in range(num_draws)], [0] * num_draws, logits.numel())
    return sample(logits.expand(num_draws, -1).contiguous(), metadata)


def chi_square(tokens: Tensor, probs: Tensor) -> float:
    observed = torch.bincount(tokens, minlength=probs.numel()).double()
    assert observed[probs == 0].sum() == 0, "a hidden token was drawn"
    expected = probs.double() * tokens.numel()
    seen = probs > 0
    return float(((observed - expected)[seen] ** 2 / expected[seen]).sum())


# 99.9 % quantiles of the chi-square distribution by degrees of freedom.
QUANTILE = {3: 16.27, 6: 22.46, 7: 24.32, 15: 37.70}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_follow_the_softmax_over_temperature(temperature: float) -> None:
    logits = torch.linspace(-1.5, 1.5, 16)
    tokens = draw(logits, SamplingParams(temperature=temperature), 20_000)
    assert chi_square(tokens, torch.softmax(logits / temperature, 0)) < QUANTILE[15]


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(top_k=8), 8),
        (SamplingParams(top_k=8, top_p=0.6), 4),
        (SamplingParams(min_p=0.25), 7),
    ],
)
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_truncated_distributions(
    params: SamplingParams, kept: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways of drawing noise, for all tokens and for the kept ones alone."""
    monkeypatch.setattr(gumbel_sampling, "_SPARSE_SHARE", share)
    logits = torch.linspace(1.5, -1.5, 16)
    probs = torch.softmax(logits[:kept], 0)
    tokens = draw(logits, params, 20_000)
    assert chi_square(tokens, torch.cat((probs, torch.zeros(16 - kept)))) < QUANTILE[kept - 1]


def test_noise_for_the_kept_tokens_alone_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(50, 1000)
    params = [SamplingParams(seed=i, top_k=1 + i, top_p=0.9) for i in range(50)]
    metadata = metadata_of(params, [i % 7 for i in range(50)], 1000)
    sparse = sample(logits, metadata)
    monkeypatch.setattr(gumbel_sampling, "_SPARSE_SHARE", 0.0)
    assert torch.equal(sample(logits, metadata), sparse)


MIXED = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.7, seed=1),
    SamplingParams(temperature=1e-12, seed=2),
    SamplingParams(temperature=1.3, top_k=5, seed=3),
    SamplingParams(temperature=0, top_k=3, top_p=0.1, seed=4),
    SamplingParams(temperature=1.0, top_p=0.8, min_p=0.05, seed=5),
    SamplingParams(temperature=2.0, top_k=10**9, seed=2**64 - 1),
    SamplingParams(temperature=1e-4, seed=7),
]


def test_no_row_depends_on_its_neighbours() -> None:
    logits = 2 * torch.randn(len(MIXED), 500)
    outputs = list(range(len(MIXED)))
    together = sample(logits, metadata_of(MIXED, outputs, 500))
    backwards = sample(logits.flip(0), metadata_of(MIXED[::-1], outputs[::-1], 500)).flip(0)
    alone = [sample(logits[i : i + 1], metadata_of([MIXED[i]], [i], 500)) for i in range(len(MIXED))]
    assert torch.equal(together, backwards)
    assert torch.equal(together, torch.cat(alone))


def test_greedy_rows_are_the_argmax_even_among_random_ones() -> None:
    logits = torch.randn(len(MIXED), 500)
    tokens = sample(logits, metadata_of(MIXED, [0] * len(MIXED), 500))
    greedy = [row for row, params in enumerate(MIXED) if params.greedy]
    assert greedy == [0, 2, 4]
    assert torch.equal(tokens[greedy], logits.argmax(-1)[greedy])


def test_the_same_seed_repeats_and_every_position_is_new() -> None:
    logits = torch.zeros(1, 10_000)
    drawn = [
        int(sample(logits, metadata_of([SamplingParams(seed=seed)], [position], 10_000)))
        for seed in (11, 11, 12)
        for position in range(20)
    ]
    assert drawn[:20] == drawn[20:40]
    assert len(set(drawn)) == 40


def test_top_k_beyond_the_vocabulary_keeps_everything() -> None:
    logits = torch.randn(1, 20)
    whole = truncated_logits(logits, metadata_of([SamplingParams(top_k=21, seed=0)], [0], 20))
    assert torch.equal(whole, logits)


def test_a_random_row_without_a_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="given no seed"):
        metadata_of([SamplingParams(temperature=1.0)], [0], 10)
