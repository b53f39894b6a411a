"""Rejection sampling in torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.gumbel_sampling import argmax
from kernels.philox import Stream, gumbel, uniform, uniform_at
from kernels.rejection_sampling.drafts import Drafts, Verdicts


def target_distribution(logits: Tensor, greedy: Tensor) -> Tensor:
    """The distributions that rows are sampled from.

    Args:
        logits: [rows, vocab_size] float32.
        greedy: [rows] bool.

    Returns:
        [rows, vocab_size] float32: the softmax, of greedy rows 1 at the largest logit and 0 elsewhere.
    """
    certain = F.one_hot(logits.argmax(dim=-1), logits.shape[-1]).to(logits.dtype)
    return torch.where(greedy[:, None], certain, torch.softmax(logits, dim=-1))


def recovered_distribution(target_probs: Tensor, draft_probs: Tensor | None, draft_token_ids: Tensor) -> Tensor:
    """What a token in place of a rejected draft is drawn from: max(p − q, 0) over its sum.

    Args:
        target_probs: [rows, vocab_size] float32, p.
        draft_probs: [rows, vocab_size] float32, q; None: 1 at the draft.
        draft_token_ids: [rows] int64, the rejected drafts.

    Returns:
        [rows, vocab_size] float32. Where nothing is left, which only rounding can bring about, p itself.
    """
    if draft_probs is None:
        draft_probs = F.one_hot(draft_token_ids, target_probs.shape[-1]).to(target_probs.dtype)
    left = (target_probs - draft_probs).clamp_(min=0.0)
    total = left.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, left / total, target_probs)


def rejection_sample_reference(target_logits: Tensor, drafts: Drafts) -> Verdicts:
    """`rejection_sample` in torch."""
    num_requests, num_drafts = drafts.seeds.numel(), drafts.token_ids.numel()
    requests = torch.arange(num_requests, device=target_logits.device)
    of_request = requests.repeat_interleave(drafts.start_loc.diff())
    place = torch.arange(num_drafts, device=target_logits.device)
    rows = place + of_request
    place = place - drafts.start_loc[of_request]

    target_probs = _probs_of_drafts(target_logits, rows, drafts.token_ids, drafts.greedy[of_request])
    draft_probs = drafts.own_probs()
    uniforms = torch.zeros_like(target_probs)
    random = torch.nonzero(~drafts.greedy[of_request]).flatten()
    if random.numel():
        uniforms[random] = uniform_at(
            drafts.seeds[of_request[random]],
            (drafts.positions[of_request] + place)[random],
            Stream.ACCEPT,
            drafts.token_ids[random, None],
        ).squeeze(1)
    acceptable = torch.zeros(num_requests, drafts.most, dtype=torch.int64, device=target_logits.device)
    acceptable[of_request, place] = (uniforms * draft_probs < target_probs).long()
    num_accepted = acceptable.cumprod(dim=1).sum(dim=1)

    token_ids = target_logits.new_full((num_requests, drafts.most + 1), -1, dtype=torch.int64)
    kept = place < num_accepted[of_request]
    token_ids[of_request[kept], place[kept]] = drafts.token_ids[kept]
    last = _last_tokens(target_logits, drafts, num_accepted)
    token_ids.scatter_(1, num_accepted[:, None], last[:, None])
    return Verdicts(token_ids, num_accepted, target_probs, draft_probs, uniforms)


def _probs_of_drafts(logits: Tensor, rows: Tensor, token_ids: Tensor, greedy: Tensor) -> Tensor:
    """[drafts]: what `target_distribution` says of one token in each of these rows, without the distributions of greedy
    ones."""
    probs = (argmax(logits)[rows] == token_ids).to(logits.dtype)
    random = torch.nonzero(~greedy).flatten()
    if random.numel():
        distributions = torch.softmax(logits[rows[random]], dim=-1)
        probs[random] = distributions.gather(1, token_ids[random, None]).squeeze(1)
    return probs


def _last_tokens(target_logits: Tensor, drafts: Drafts, num_accepted: Tensor) -> Tensor:
    """[num_requests]: the recovered or the bonus token of each; of greedy requests both are the largest logit."""
    requests = torch.arange(num_accepted.numel(), device=target_logits.device)
    first = drafts.start_loc[:-1]
    logits = target_logits[first + requests + num_accepted]
    tokens = argmax(logits)
    random = ~drafts.greedy
    rejected = num_accepted < drafts.start_loc.diff()

    bonus = torch.nonzero(random & ~rejected).flatten()
    if bonus.numel():
        tokens[bonus] = _drawn(logits[bonus], drafts, bonus, num_accepted, Stream.TARGET)
    recovered = torch.nonzero(random & rejected).flatten()
    if recovered.numel():
        draft = (first + num_accepted)[recovered]
        draft_probs = None if drafts.probs is None else drafts.probs[draft]
        target_probs = torch.softmax(logits[recovered], dim=-1)
        left = recovered_distribution(target_probs, draft_probs, drafts.token_ids[draft])
        tokens[recovered] = _drawn(left.log(), drafts, recovered, num_accepted, Stream.RECOVER)
    return tokens


def _drawn(scores: Tensor, drafts: Drafts, requests: Tensor, num_accepted: Tensor, stream: Stream) -> Tensor:
    """[requests]: one token each by Gumbel-max, from scores [requests, vocab_size]."""
    positions = (drafts.positions + num_accepted)[requests]
    return argmax(gumbel(uniform(drafts.seeds[requests], positions, stream, scores.shape[1])).add_(scores))
