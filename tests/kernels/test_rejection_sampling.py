"""Rejection sampling against its rule written out draft by draft, and against the distribution that it must keep."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels.philox import Stream, uniform
from kernels.rejection_sampling import (
    Drafts,
    Verdicts,
    recovered_distribution,
    rejection_sample,
    target_distribution,
)
from kernels.rejection_sampling.reference import rejection_sample_reference
from kernels.rejection_sampling.triton_kernels import rejection_sample_triton

COUNTS = [2, 0, 3, 1, 0, 3, 3, 1]
MOST = 4


def random_case(vocab_size: int, *, certain: bool, device: str = "cpu") -> tuple[Tensor, Drafts]:
    """Drafts of which many are likely in the target's eyes, some hidden from it, and half of all rows greedy."""
    counts = torch.tensor(COUNTS)
    num_drafts, num_requests = sum(COUNTS), len(COUNTS)
    logits = 2 * torch.randn(num_drafts + num_requests, vocab_size)
    logits[torch.rand(logits.shape) < 0.3] = -math.inf
    of_request = torch.arange(num_requests).repeat_interleave(counts)
    likely = logits[torch.arange(num_drafts) + of_request]
    probs = None if certain else torch.softmax(likely + torch.randn(num_drafts, vocab_size), dim=-1)
    tokens = likely.argmax(dim=1) if probs is None else torch.multinomial(probs, 1).squeeze(1)
    tokens = torch.where(torch.rand(num_drafts) < 0.3, torch.randint(0, vocab_size, (num_drafts,)), tokens)
    drafts = Drafts(
        token_ids=tokens.to(device),
        start_loc=torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0))).to(device),
        most=MOST,
        probs=None if probs is None else probs.to(device),
        greedy=(torch.arange(num_requests) % 2 == 1).to(device),
        seeds=torch.randint(-(2**62), 2**62, (num_requests,)).to(device),
        positions=torch.randint(0, 100, (num_requests,)).to(device),
    )
    return logits.to(device), drafts


def by_rule(logits: Tensor, drafts: Drafts) -> list[list[int]]:
    """The tokens put out per request, in float64."""
    outputs = []
    for request in range(drafts.seeds.numel()):
        seed, position = drafts.seeds[request : request + 1], drafts.positions[request : request + 1]
        first, end = drafts.start_loc[request : request + 2].tolist()
        output: list[int] = []
        while True:
            draft, row = first + len(output), logits[first + request + len(output)].double()
            here = position + len(output)
            p = torch.softmax(row, dim=0)
            if drafts.greedy[request]:
                p = torch.zeros_like(p)
                p[row.argmax()] = 1.0
            stream = Stream.TARGET
            if draft < end:
                token = int(drafts.token_ids[draft])
                q = torch.zeros_like(p)
                q[token] = 1.0
                q = q if drafts.probs is None else drafts.probs[draft].double()
                if uniform(seed, here, Stream.ACCEPT, p.numel())[0, token] < p[token] / q[token]:
                    output.append(token)
                    continue
                p, stream = (p - q).clamp(min=0), Stream.RECOVER
            noise = -torch.log(-torch.log(uniform(seed, here, stream, p.numel())[0].double()))
            output.append(int((p.log() + noise).argmax()))
            break
        outputs.append(output)
    return outputs


def outputs_of(verdicts: Verdicts) -> list[list[int]]:
    """Without the padding, which must be -1."""
    outputs = []
    for row, accepted in zip(verdicts.token_ids.tolist(), verdicts.num_accepted.tolist(), strict=True):
        assert len(row) == MOST + 1 and set(row[accepted + 1 :]) <= {-1}
        outputs.append(row[: accepted + 1])
    return outputs


@pytest.mark.parametrize("certain", [True, False])
def test_verdicts_follow_the_rule(certain: bool) -> None:
    accepted = rejected = 0
    for seed in range(20):
        torch.manual_seed(seed)
        logits, drafts = random_case(50, certain=certain)
        verdicts = rejection_sample(logits, drafts)
        assert outputs_of(verdicts) == by_rule(logits, drafts)
        accepted += int(verdicts.num_accepted.sum())
        rejected += int((verdicts.num_accepted < torch.tensor(COUNTS)).sum())
    assert accepted > 50 and rejected > 50


@pytest.mark.filterwarnings("ignore:divide by zero")  # the interpreter's logarithm of a probability of 0
@pytest.mark.parametrize("certain", [True, False])
@pytest.mark.parametrize("vocab_size", [50, 1100])
def test_triton_gives_the_same_verdicts(certain: bool, vocab_size: int, device: str) -> None:
    torch.manual_seed(0)
    logits, drafts = random_case(vocab_size, certain=certain)
    expected = rejection_sample(logits, drafts)
    assert 0 < int(expected.num_accepted.sum()) < sum(COUNTS)
    wider = torch.full((logits.shape[0], vocab_size + 3), math.nan, device=device)
    wider[:, :vocab_size] = logits
    torch.manual_seed(0)
    moved = random_case(vocab_size, certain=certain, device=device)[1]
    verdicts = rejection_sample_triton(wider[:, :vocab_size], moved)
    assert torch.equal(verdicts.token_ids.cpu(), expected.token_ids)
    assert torch.equal(verdicts.num_accepted.cpu(), expected.num_accepted)
    assert torch.equal(verdicts.uniforms.cpu(), expected.uniforms)
    assert torch.equal(verdicts.draft_probs.cpu(), expected.draft_probs)
    torch.testing.assert_close(verdicts.target_probs.cpu(), expected.target_probs)


def test_the_recorded_probabilities_tell_the_verdicts() -> None:
    logits, drafts = random_case(50, certain=False)
    verdicts = rejection_sample(logits, drafts)
    acceptable = (verdicts.uniforms * verdicts.draft_probs < verdicts.target_probs).tolist()
    for request, accepted in enumerate(verdicts.num_accepted.tolist()):
        first, end = drafts.start_loc[request : request + 2].tolist()
        assert acceptable[first:end][: accepted + 1] == [True] * accepted + [False] * (accepted < end - first)


def test_greedy_rows_put_out_the_largest_logits() -> None:
    logits, drafts = random_case(50, certain=False)
    verdicts = rejection_sample(logits, drafts._replace(greedy=torch.ones(len(COUNTS), dtype=torch.bool)))
    largest = logits.argmax(dim=1).tolist()
    for request, output in enumerate(outputs_of(verdicts)):
        first = int(drafts.start_loc[request]) + request
        assert output == largest[first : first + len(output)]


@pytest.mark.parametrize("hidden", [False, True])
def test_greedy_requests_alone_are_verified_as_in_the_reference(hidden: bool) -> None:
    logits, drafts = random_case(50, certain=False)
    drafts = drafts._replace(greedy=torch.ones(len(COUNTS), dtype=torch.bool))
    likely = torch.randperm(drafts.token_ids.numel())[::2]
    rows = likely + torch.arange(len(COUNTS)).repeat_interleave(drafts.start_loc.diff())[likely]
    drafts.token_ids[likely] = logits[rows].argmax(dim=1)
    if hidden:
        logits[::3] = -torch.inf
    fast, slow = rejection_sample(logits, drafts), rejection_sample_reference(logits, drafts)
    assert 0 < int(fast.num_accepted.sum()) < drafts.token_ids.numel()
    assert fast.largest is not None
    assert torch.equal(fast.largest, logits.amax(dim=-1))
    for name, value in fast._replace(largest=None)._asdict().items():
        assert value is None or torch.equal(value, getattr(slow, name)), name


def single_drafts(draws: int, p: Tensor, q: Tensor | None) -> tuple[Tensor, Drafts]:
    """One draft for each of many requests, drawn from q, or always token 2."""
    tokens = torch.multinomial(q, draws, replacement=True) if q is not None else torch.full((draws,), 2)
    drafts = Drafts(
        token_ids=tokens,
        start_loc=torch.arange(draws + 1),
        most=1,
        probs=None if q is None else q.expand(draws, -1),
        greedy=torch.zeros(draws, dtype=torch.bool),
        seeds=torch.arange(draws),
        positions=torch.zeros(draws, dtype=torch.int64),
    )
    return p.log().expand(2 * draws, -1), drafts


def chi_square(tokens: Tensor, p: Tensor) -> float:
    expected = tokens.numel() * p.double()
    return float(((torch.bincount(tokens, minlength=p.numel()) - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("certain", [True, False])
def test_output_has_the_target_distribution_whatever_the_drafter(certain: bool) -> None:
    p, q = torch.softmax(torch.randn(8), dim=0), torch.softmax(2 * torch.randn(8), dim=0)
    logits, drafts = single_drafts(20_000, p, None if certain else q)
    verdicts = rejection_sample(logits, drafts)
    quantile = 24.3  # 99.9 % for 7 degrees of freedom
    assert chi_square(verdicts.token_ids[:, 0], p) < quantile
    # Behind an accepted draft stands a bonus token, and it has the target's distribution as well.
    assert chi_square(verdicts.token_ids[verdicts.num_accepted == 1, 1], p) < quantile
    # The same test tells wrong rules: to accept always, or to draw from p in place of what was rejected.
    assert chi_square(drafts.token_ids, p + 1e-9) > quantile
    rejected = verdicts.num_accepted == 0
    renewed = torch.where(rejected, torch.multinomial(p, 20_000, replacement=True), drafts.token_ids)
    assert chi_square(renewed, p) > quantile


def test_a_hidden_draft_is_never_accepted_nor_recovered() -> None:
    p = torch.tensor([0.5, 0.3, 0.0, 0.2])
    verdicts = rejection_sample(*single_drafts(500, p, None))
    assert (verdicts.num_accepted == 0).all() and not (verdicts.token_ids == 2).any()


def test_drafts_of_the_target_itself_are_all_accepted() -> None:
    p = torch.softmax(torch.randn(8), dim=0)
    logits, drafts = single_drafts(2000, p, p)
    exact = drafts._replace(probs=target_distribution(logits[:2000], drafts.greedy))
    assert (rejection_sample(logits, exact).num_accepted == 1).all()


def test_where_rounding_leaves_nothing_the_target_is_drawn_from(device: str) -> None:
    p = torch.tensor([[0.5, 0.5, 0.0]])
    assert torch.equal(recovered_distribution(p, p * 1.5, torch.tensor([0])), p)
    # A drafter that claims more than there is, so that drafts are rejected though nothing is left over.
    logits = torch.tensor([[0.0, 0.0, -math.inf]] * 4)
    for seed in range(4):
        drafts = Drafts(
            token_ids=torch.tensor([0, 1], device=device),
            start_loc=torch.arange(3, device=device),
            most=MOST,
            probs=torch.full((2, 3), 1e6, device=device),
            greedy=torch.zeros(2, dtype=torch.bool, device=device),
            seeds=torch.tensor([seed, seed + 9], device=device),
            positions=torch.zeros(2, dtype=torch.int64, device=device),
        )
        by_torch, by_triton = (rule(logits.to(device), drafts) for rule in (rejection_sample, rejection_sample_triton))
        assert by_torch.num_accepted.tolist() == [0, 0]
        assert set(by_torch.token_ids[:, 0].tolist()) <= {0, 1}
        assert torch.equal(by_triton.token_ids, by_torch.token_ids)


@pytest.mark.parametrize("certain", [True, False])
def test_requests_without_drafts_are_sampled(certain: bool, device: str) -> None:
    drafts = Drafts(
        token_ids=torch.empty(0, dtype=torch.int64, device=device),
        start_loc=torch.zeros(3, dtype=torch.int64, device=device),
        most=MOST,
        probs=None if certain else torch.empty(0, 9, device=device),
        greedy=torch.tensor([True, False], device=device),
        seeds=torch.tensor([3, 4], device=device),
        positions=torch.tensor([0, 5], device=device),
    )
    logits = torch.randn(2, 9, device=device)
    for rule in (rejection_sample, rejection_sample_triton):
        assert outputs_of(rule(logits, drafts)) == by_rule(logits.cpu(), drafts)


def test_shapes_that_contradict_each_other_are_refused() -> None:
    logits, drafts = random_case(20, certain=False)
    with pytest.raises(ValueError, match="target_logits must be"):
        rejection_sample(logits[1:], drafts)
    with pytest.raises(ValueError, match="start_loc one longer"):
        rejection_sample(logits, drafts._replace(start_loc=drafts.start_loc[1:]))
    with pytest.raises(ValueError, match="probs must be"):
        rejection_sample(logits, drafts._replace(probs=torch.ones(1, 20)))
