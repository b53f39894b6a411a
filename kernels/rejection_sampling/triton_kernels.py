"""Rejection sampling in Triton: the vocabulary of a row is cut into blocks, and there are three launches.

The first leaves the maximum and the sum of exponentials of every block, the second gives the verdicts, a program per
request, and the third looks at the one row of each request that its last token is drawn from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.jit import cdiv, jit, next_power_of_2
from kernels.philox import Stream, gumbel_block, uniform_of_token
from kernels.rejection_sampling.drafts import Drafts, Verdicts
from kernels.specimen import Specimen

if TYPE_CHECKING:
    import triton.language as tl

_BLOCK = 1024


def rejection_sample_triton(target_logits: Tensor, drafts: Drafts) -> Verdicts:
    """`rejection_sample`, with shapes that it has checked."""
    num_requests, num_drafts = drafts.seeds.numel(), drafts.token_ids.numel()
    token_ids = target_logits.new_full((num_requests, drafts.most + 1), -1, dtype=torch.int64)
    num_accepted = token_ids.new_zeros(num_requests)
    target_probs = target_logits.new_empty(num_drafts)
    uniforms = target_logits.new_empty(num_drafts)
    draft_probs = drafts.own_probs()
    verdicts = Verdicts(token_ids, num_accepted, target_probs, draft_probs, uniforms)
    if not num_requests:
        return verdicts

    logits = target_logits if target_logits.stride(1) == 1 else target_logits.contiguous()
    blocks = _block_statistics(logits)
    splits = blocks[0].shape[1]
    start_loc, draft_token_ids = drafts.start_loc.contiguous(), drafts.token_ids.contiguous()
    row_facts = drafts.greedy.contiguous(), drafts.seeds.contiguous(), drafts.positions.contiguous()
    _verdict_kernel[(num_requests,)](
        *(token_ids, num_accepted, target_probs, uniforms),
        *(logits, *blocks, draft_probs, draft_token_ids, start_loc, *row_facts),
        *(logits.stride(0), splits, drafts.most),
        STREAM=int(Stream.ACCEPT),
        SPLITS=next_power_of_2(splits),
        num_warps=1,
    )
    best, best_token = torch.empty_like(blocks[0]), torch.empty_like(blocks[2])
    spare, spare_token = torch.empty_like(best), torch.empty_like(best_token)
    all_draft_probs = logits if drafts.probs is None else drafts.probs.contiguous()
    _last_token_kernel[(num_requests, splits)](
        *(best, best_token, spare, spare_token),
        *(logits, *blocks[:2], all_draft_probs, draft_token_ids, start_loc, num_accepted, *row_facts),
        *(logits.stride(0), logits.shape[1], splits),
        CERTAIN=drafts.probs is None,
        TARGET=int(Stream.TARGET),
        RECOVER=int(Stream.RECOVER),
        SPLITS=next_power_of_2(splits),
        BLOCK=_BLOCK,
        num_warps=4,
    )
    value, token = _best_of_blocks(best, best_token)
    _, spare_token = _best_of_blocks(spare, spare_token)
    last = torch.where(value > float("-inf"), token, spare_token)
    token_ids.scatter_(1, num_accepted[:, None], last)
    return verdicts


def _best_of_blocks(best: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """[rows, 1] each: the best score of a row's blocks, and its token."""
    block = best.argmax(dim=1, keepdim=True)
    return best.gather(1, block), tokens.gather(1, block)


def _block_statistics(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[rows, splits] of each block: its maximum, the sum of exponentials below it, and the token of the maximum."""
    rows, vocab_size = logits.shape
    splits = cdiv(vocab_size, _BLOCK)
    largest, total = logits.new_empty(rows, splits), logits.new_empty(rows, splits)
    token = torch.empty(rows, splits, dtype=torch.int64, device=logits.device)
    _statistics_kernel[(rows, splits)](
        largest, total, token, logits, logits.stride(0), vocab_size, splits, BLOCK=_BLOCK, num_warps=4
    )
    return largest, total, token


@jit
def _statistics_kernel(
    largest: tl.tensor,
    total: tl.tensor,
    tokens: tl.tensor,
    logits: tl.tensor,
    logits_stride: int,
    vocab_size: int,
    splits: int,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    token = split * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits + row * logits_stride + token, mask=token < vocab_size, other=float("-inf"))
    value, at = tl.max(logit, axis=0, return_indices=True)
    # A block may hide everything; minus infinity less itself is no number.
    powers = tl.where(logit > float("-inf"), tl.exp(logit - value), 0.0)
    tl.store(largest + row * splits + split, value)
    tl.store(total + row * splits + split, tl.sum(powers, axis=0))
    tl.store(tokens + row * splits + split, tl.minimum(split * BLOCK + at, vocab_size - 1).to(tl.int64))


@jit
def _join_blocks(largest: tl.tensor, total: tl.tensor, row: tl.tensor, splits: int, SPLITS: tl.constexpr) -> tuple:
    """The maximum of a row, the sum of exponentials below it, and the first block with the maximum."""
    split = tl.arange(0, SPLITS)
    block_max = tl.load(largest + row * splits + split, mask=split < splits, other=float("-inf"))
    block_sum = tl.load(total + row * splits + split, mask=split < splits, other=0.0)
    value, at = tl.max(block_max, axis=0, return_indices=True)
    below = tl.where(block_max > float("-inf"), block_sum * tl.exp(block_max - value), 0.0)
    return value, tl.sum(below, axis=0), tl.minimum(at, splits - 1)


@jit
def _verdict_kernel(
    token_ids: tl.tensor,
    num_accepted: tl.tensor,
    target_probs: tl.tensor,
    uniforms: tl.tensor,
    logits: tl.tensor,
    largest: tl.tensor,
    total: tl.tensor,
    largest_token: tl.tensor,
    draft_probs: tl.tensor,
    draft_token_ids: tl.tensor,
    start_loc: tl.tensor,
    greedy: tl.tensor,
    seeds: tl.tensor,
    positions: tl.tensor,
    logits_stride: int,
    splits: int,
    most: int,
    STREAM: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    request = tl.program_id(0).to(tl.int64)
    first, end = tl.load(start_loc + request), tl.load(start_loc + request + 1)
    is_greedy = tl.load(greedy + request)
    seed, position = tl.load(seeds + request), tl.load(positions + request)
    accepted = tl.zeros((), tl.int64)
    for draft in range(first, end):
        token = tl.load(draft_token_ids + draft)
        row = draft + request
        value, below, block = _join_blocks(largest, total, row, splits, SPLITS)
        if is_greedy:
            prob = (token == tl.load(largest_token + row * splits + block)).to(tl.float32)
        else:
            prob = tl.exp(tl.load(logits + row * logits_stride + token) - value) / below
        chance = tl.where(is_greedy, 0.0, uniform_of_token(seed, position + draft - first, STREAM, token))
        tl.store(target_probs + draft, prob)
        tl.store(uniforms + draft, chance)
        # None is accepted behind a rejection.
        if (chance * tl.load(draft_probs + draft) < prob) & (accepted == draft - first):
            tl.store(token_ids + request * (most + 1) + accepted, token)
            accepted += 1
    tl.store(num_accepted + request, accepted)


@jit
def _last_token_kernel(
    best: tl.tensor,
    best_token: tl.tensor,
    spare: tl.tensor,
    spare_token: tl.tensor,
    logits: tl.tensor,
    largest: tl.tensor,
    total: tl.tensor,
    draft_probs: tl.tensor,
    draft_token_ids: tl.tensor,
    start_loc: tl.tensor,
    num_accepted: tl.tensor,
    greedy: tl.tensor,
    seeds: tl.tensor,
    positions: tl.tensor,
    logits_stride: int,
    vocab_size: int,
    splits: int,
    CERTAIN: tl.constexpr,
    TARGET: tl.constexpr,
    RECOVER: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    request = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    accepted = tl.load(num_accepted + request)
    draft = tl.load(start_loc + request) + accepted
    rejected = draft < tl.load(start_loc + request + 1)
    row = draft + request
    first = split * BLOCK
    token = first + tl.arange(0, BLOCK)
    inside = token < vocab_size
    logit = tl.load(logits + row * logits_stride + token, mask=inside, other=float("-inf"))
    score, plain = logit, logit
    if tl.load(greedy + request) == 0:
        seed, position = tl.load(seeds + request), tl.load(positions + request) + accepted
        if rejected:
            noise = gumbel_block(seed, position, RECOVER, first, BLOCK)
            plain = logit + noise
            if CERTAIN:
                score = tl.where(token == tl.load(draft_token_ids + draft), float("-inf"), plain)
            else:
                value, below, _ = _join_blocks(largest, total, row, splits, SPLITS)
                drafted = tl.load(draft_probs + draft * vocab_size + token, mask=inside, other=0.0)
                left = tl.exp(logit - value) / below - drafted
                score = tl.log(tl.maximum(left, 0.0)) + noise
        else:
            plain = logit + gumbel_block(seed, position, TARGET, first, BLOCK)
            score = plain
    at_block = request * splits + split
    value, at = tl.max(score, axis=0, return_indices=True)
    tl.store(best + at_block, value)
    tl.store(best_token + at_block, tl.minimum(first + at, vocab_size - 1).to(tl.int64))
    # What is drawn from if rounding leaves nothing of the target's distribution less the drafter's.
    value, at = tl.max(plain, axis=0, return_indices=True)
    tl.store(spare + at_block, value)
    tl.store(spare_token + at_block, tl.minimum(first + at, vocab_size - 1).to(tl.int64))


def specimens() -> list[Specimen]:
    """A vocabulary of 131072 in blocks of 1024; the verdicts on four drafts of a request."""
    splits, num_drafts = 128, 4
    floats = dict.fromkeys(("target_probs", "uniforms", "logits", "largest", "total", "draft_probs"), "*fp32")
    rows = {"start_loc": "*i64", "greedy": "*i1", "seeds": "*i64", "positions": "*i64", "draft_token_ids": "*i64"}
    sizes = {"logits_stride": "i32:16", "vocab_size": "i32:16", "splits": "i32"}
    statistics = {"largest": "*fp32", "total": "*fp32", "tokens": "*i64", "logits": "*fp32", **sizes}
    verdict = {**floats, **rows, "token_ids": "*i64", "num_accepted": "*i64", "largest_token": "*i64"}
    verdict |= {"logits_stride": "i32:16", "splits": "i32", "most": "i32"}
    last = {name: type_ for name, type_ in floats.items() if name not in ("target_probs", "uniforms")}
    last |= {**rows, **sizes, "num_accepted": "*i64"}
    last |= {"best": "*fp32", "best_token": "*i64", "spare": "*fp32", "spare_token": "*i64"}
    streams = {"TARGET": int(Stream.TARGET), "RECOVER": int(Stream.RECOVER)}
    tile = {"SPLITS": splits, "BLOCK": _BLOCK}
    noise = 100 / 4 + 4
    return [
        Specimen(
            "rejection_statistics",
            _statistics_kernel,
            statistics,
            {"BLOCK": _BLOCK},
            num_warps=4,
            num_stages=2,
            flops=4 * _BLOCK,
            bytes=4 * _BLOCK,
        ),
        Specimen(
            "rejection_verdict",
            _verdict_kernel,
            verdict,
            {"STREAM": int(Stream.ACCEPT), "SPLITS": splits},
            num_warps=1,
            num_stages=2,
            flops=num_drafts * (5 * splits + 100),
            bytes=num_drafts * 8 * splits,
        ),
        *(
            Specimen(
                name,
                _last_token_kernel,
                last,
                {"CERTAIN": certain, **streams, **tile},
                num_warps=4,
                num_stages=2,
                flops=(noise + (2 if certain else 6)) * _BLOCK,
                bytes=(4 if certain else 8) * _BLOCK,
            )
            for name, certain in (("rejection_last_token", True), ("rejection_last_token_probs", False))
        ),
    ]
