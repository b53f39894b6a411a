"""Sampled output has the target model's distribution: chi-square tests, which wrong rules fail.

A text of three tokens is written by a target that is a table, p[token before, token], with a drafter that is another
one, q. Of this target the probability of every text is known exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from engine.llm import LLM
from engine.sample.rejection_sampler import DraftTokens, RejectionSampler
from engine.sample.sampler import SamplingMetadata
from engine.sampling_params import SamplingParams
from kernels.gumbel_sampling import gumbel_max
from kernels.philox import Stream
from kernels.rejection_sampling import Verdicts

VOCAB, LENGTH, SAMPLES = 4, 3, 20_000
#: Below this, a rule is said to be wrong.
SIGNIFICANCE = 0.01

Rule = Callable[[Tensor, SamplingMetadata, DraftTokens], Verdicts]


def p_value(counts: Tensor, expected: Tensor) -> float:
    """Of the chi-square test that counts [cells] come from expected counts [cells]."""
    statistic = ((counts.double() - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


def two_sample_p_value(first: Tensor, second: Tensor) -> float:
    """Of the test that two rows of counts [cells] come from one distribution; rare cells are put together."""
    total = first + second
    rare = total < 40
    rows = [torch.cat((row[~rare], row[rare].sum()[None])).double() for row in (first, second)]
    rows = [row[(rows[0] + rows[1]) > 0] for row in rows]
    shares = (rows[0] + rows[1]) / (first.sum() + second.sum())
    statistic = sum(((row - row.sum() * shares) ** 2 / (row.sum() * shares)).sum() for row in rows)
    assert isinstance(statistic, Tensor)
    freedom = torch.tensor((len(shares) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


def metadata_of(seeds: Tensor, positions: Tensor) -> SamplingMetadata:
    rows = len(seeds)
    ones = torch.ones(rows)
    return SamplingMetadata(
        temperature=ones, top_k=torch.zeros(rows, dtype=torch.int64), top_p=ones, min_p=torch.zeros(rows),
        seeds=seeds, output_positions=positions, random_rows=torch.arange(rows),
        any_min_p=False, any_top_k_top_p=False,
    )  # fmt: skip


def counts_of_texts(rule: Rule, p: Tensor, q: Tensor | None) -> Tensor:
    """[VOCAB ** LENGTH]: how often each text came; two drafts, then the token behind them, then one by one.

    Without q the drafts are always the same, as those of an n-gram.
    """
    seeds = torch.arange(SAMPLES) * 7919 + 1
    before = torch.zeros(SAMPLES, dtype=torch.int64)
    drafts, drawn_from, context = [], [], before
    for place in range(2):
        if q is None:
            token = torch.full((SAMPLES,), 1 + place)
        else:
            positions, ones = torch.full((SAMPLES,), place), torch.ones(SAMPLES)
            token = gumbel_max(q[context].log(), ones, seeds, positions, Stream.DRAFT)
            drawn_from.append(q[context])
        drafts.append(token)
        context = token
    rows = torch.stack([p[before], p[drafts[0]], p[drafts[1]]], dim=1).reshape(-1, VOCAB)
    tokens = DraftTokens(
        token_ids=torch.stack(drafts, dim=1).flatten(),
        start_loc=2 * torch.arange(SAMPLES + 1),
        first_rows=3 * torch.arange(SAMPLES),
        most=2,
        probs=None if q is None else torch.stack(drawn_from, dim=1).reshape(-1, VOCAB),
    )
    metadata = metadata_of(seeds.repeat_interleave(3), torch.arange(3).repeat(SAMPLES))
    verdicts = rule(rows.log(), metadata, tokens)
    texts = verdicts.token_ids.clone()
    for place in range(1, LENGTH):
        left = torch.nonzero(texts[:, place] < 0).flatten()
        positions, ones = torch.full((len(left),), place), torch.ones(len(left))
        texts[left, place] = gumbel_max(p[texts[left, place - 1]].log(), ones, seeds[left], positions, Stream.TARGET)
    return torch.bincount(texts @ torch.tensor([VOCAB**2, VOCAB, 1]), minlength=VOCAB**LENGTH)


def expected_counts(p: Tensor) -> Tensor:
    texts = product(range(VOCAB), repeat=LENGTH)
    return SAMPLES * torch.stack([(p[0, a] * p[a, b] * p[b, c]).double() for a, b, c in texts])


def accept_always(processed: Tensor, metadata: SamplingMetadata, drafts: DraftTokens) -> Verdicts:
    """A wrong rule: what a drafter says goes."""
    verdicts = RejectionSampler()(processed, metadata, drafts)
    token_ids = verdicts.token_ids.clone()
    token_ids[:, :2] = drafts.token_ids.view(-1, 2)
    token_ids[verdicts.num_accepted < 2, 2] = -1
    return verdicts._replace(token_ids=token_ids)


def recover_from_target(processed: Tensor, metadata: SamplingMetadata, drafts: DraftTokens) -> Verdicts:
    """A wrong rule: a rejected draft is replaced by a token of the target's, without taking off what was drafted."""
    verdicts = RejectionSampler()(processed, metadata, drafts)
    token_ids, accepted = verdicts.token_ids.clone(), verdicts.num_accepted
    rejected = torch.nonzero(accepted < 2).flatten()
    rows = drafts.first_rows[rejected] + accepted[rejected]
    ones = torch.ones(len(rejected))
    drawn = gumbel_max(processed[rows], ones, metadata.seeds[rows], accepted[rejected], Stream.RECOVER)
    token_ids[rejected, accepted[rejected]] = drawn
    return verdicts._replace(token_ids=token_ids)


@pytest.fixture(scope="module")
def tables() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.softmax(torch.randn(VOCAB, VOCAB, generator=generator), dim=-1) for _ in range(2))
    return p, q


@pytest.mark.parametrize("certain", [False, True], ids=["drawn drafts", "certain drafts"])
def test_every_text_comes_as_often_as_the_target_says(tables: tuple[Tensor, Tensor], certain: bool) -> None:
    p, q = tables
    counts = counts_of_texts(RejectionSampler(), p, None if certain else q)
    assert p_value(counts, expected_counts(p)) > SIGNIFICANCE


@pytest.mark.parametrize("certain", [False, True], ids=["drawn drafts", "certain drafts"])
@pytest.mark.parametrize("rule", [accept_always, recover_from_target])
def test_wrong_rules_are_told(tables: tuple[Tensor, Tensor], rule: Rule, certain: bool) -> None:
    p, q = tables
    assert p_value(counts_of_texts(rule, p, None if certain else q), expected_counts(p)) < 1e-6


@pytest.mark.parametrize(
    "config",
    [
        {"method": "draft_model", "model": "orrery-tiny-draft", "num_speculative_tokens": 2},
        {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 1, "prompt_lookup_max": 1},
        {"method": "eagle", "num_speculative_tokens": 2},
        {"method": "medusa", "num_speculative_tokens": 2},
    ],
    ids=["draft model", "n-gram", "eagle", "medusa"],
)
def test_the_whole_engine_says_what_it_says_without_drafts(config: dict[str, Any]) -> None:
    """Texts of three tokens, of four that are allowed, two of which the prompt has before."""
    require_one_distribution(config, [265, 274, 390, 391], length=3)


@pytest.mark.parametrize("method", ["eagle", "medusa"])
def test_so_does_a_drafter_that_stops_where_it_is_not_sure(method: str) -> None:
    config = {"method": method, "num_speculative_tokens": 3, "draft_confidence_threshold": 0.6}
    drafted = require_one_distribution(config, [265, 390], length=5)
    assert drafted[0] > 1.1 * drafted[1] > 1.1 * drafted[2] > 0, "drafters stop behind some drafts, not behind others"


def require_one_distribution(config: dict[str, Any], allowed: list[int], length: int) -> list[int]:
    """Texts of so many of the allowed tokens come as often with drafts as without.

    Returns:
        Drafts by position.
    """
    samples, base = 1_500, len(allowed)
    prompt: Any = {"prompt_token_ids": [265, 274, 390, 274, 265, 391, 390]}
    counts = []
    in_any_batch = {**config, "disable_by_batch_size": None}
    for seed, speculative in ((0, None), (samples, in_any_batch)):
        llm = LLM(
            "orrery-tiny",
            max_model_len=64,
            max_num_seqs=128,
            disable_log_stats=False,
            speculative_config=speculative,
        )
        params = SamplingParams(temperature=2.0, max_tokens=length, allowed_token_ids=allowed, ignore_eos=True)
        with llm.llm_engine:
            seeded = [msgspec.structs.replace(params, seed=seed + n) for n in range(samples)]
            outputs = llm.generate([prompt] * samples, seeded)
            drafted = llm.llm_engine.get_metrics().drafted
        places = [[allowed.index(token_id) for token_id in each.outputs[0].token_ids] for each in outputs]
        digits = torch.tensor([base**place for place in range(length)])
        counts.append(torch.bincount(torch.tensor(places) @ digits, minlength=base**length))
    assert two_sample_p_value(*counts) > SIGNIFICANCE
    return list(drafted)
