"""Rejection sampling in torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

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
    counts = drafts.start_loc.diff()
    of_request = requests.repeat_interleave(counts)
    place = torch.arange(num_drafts, device=target_logits.device)
    rows = place + of_request
    place = place - drafts.start_loc[of_request]

    probs = target_distribution(target_logits[rows], drafts.greedy[of_request])
    target_probs = probs.gather(1, drafts.token_ids[:, None]).squeeze(1)
    draft_probs = drafts.own_probs()
    uniforms = uniform_at(
        drafts.seeds[of_request],
        drafts.positions[of_request] + place,
        Stream.ACCEPT,
        drafts.token_ids[:, None],
    ).squeeze(1)
    acceptable = torch.zeros(num_requests, drafts.most, dtype=torch.int64, device=target_logits.device)
    acceptable[of_request, place] = (uniforms * draft_probs < target_probs).long()
    num_accepted = acceptable.cumprod(dim=1).sum(dim=1)

    token_ids = target_logits.new_full((num_requests, drafts.most + 1), -1, dtype=torch.int64)
    kept = place < num_accepted[of_request]
    token_ids[of_request[kept], place[kept]] = drafts.token_ids[kept]
    last = _last_tokens(target_logits, probs, drafts, num_accepted)
    token_ids.scatter_(1, num_accepted[:, None], last[:, None])
    return Verdicts(token_ids, num_accepted, target_probs, draft_probs, uniforms)


def _last_tokens(target_logits: Tensor, probs: Tensor, drafts: Drafts, num_accepted: Tensor) -> Tensor:
    """[num_requests]: the recovered or the bonus token of each; `probs` are the target's at the drafts."""
    requests = torch.arange(num_accepted.numel(), device=target_logits.device)
    first = drafts.start_loc[:-1]
    scores = target_logits[first + requests + num_accepted]
    positions = drafts.positions + num_accepted
    noise = gumbel(uniform(drafts.seeds, positions, Stream.TARGET, scores.shape[1]))

    rejected = torch.nonzero(num_accepted < drafts.start_loc.diff()).flatten()
    if rejected.numel():
        draft = (first + num_accepted)[rejected]
        draft_probs = None if drafts.probs is None else drafts.probs[draft]
        scores[rejected] = recovered_distribution(probs[draft], draft_probs, drafts.token_ids[draft]).log()
        noise[rejected] = gumbel(uniform(drafts.seeds[rejected], positions[rejected], Stream.RECOVER, scores.shape[1]))
    return scores.add_(noise.masked_fill_(drafts.greedy[:, None], 0.0)).argmax(dim=1)
