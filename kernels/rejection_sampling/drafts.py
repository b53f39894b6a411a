"""What goes into rejection sampling, and what comes out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Drafts(NamedTuple):
    """The draft tokens of a step, request after request, and what their verdicts depend on."""

    token_ids: Tensor
    """[num_drafts] int64."""
    start_loc: Tensor
    """[num_requests + 1] int64: request r owns drafts `start_loc[r] : start_loc[r + 1]`."""
    most: int
    """The largest number of drafts that a request may have; known on the host."""
    probs: Tensor | None
    """[num_drafts, vocab_size] float32, the distribution each draft was drawn from; None: it was certain."""
    greedy: Tensor
    """[num_requests] bool: whether the request takes the largest logit."""
    seeds: Tensor
    """[num_requests] int64, two's complement of the unsigned 64-bit seed."""
    positions: Tensor
    """[num_requests] int64: output tokens that the request had before its first draft."""

    def own_probs(self) -> Tensor:
        """[num_drafts] float32: the drafter's probability of each draft."""
        if self.probs is None:
            return torch.ones(self.token_ids.shape, dtype=torch.float32, device=self.token_ids.device)
        return self.probs.gather(1, self.token_ids[:, None]).squeeze(1)


class Verdicts(NamedTuple):
    """What became of the drafts."""

    token_ids: Tensor
    """[num_requests, most + 1] int64: accepted drafts, then the recovered or the bonus token, then -1."""
    num_accepted: Tensor
    """[num_requests] int64: drafts accepted; one token more was put out."""
    target_probs: Tensor
    """[num_drafts] float32: the target's probability of each draft, also of those behind a rejection."""
    draft_probs: Tensor
    """[num_drafts] float32: the drafter's."""
    uniforms: Tensor
    """[num_drafts] float32: a draft is acceptable if uniform × draft prob < target prob; 0 for a greedy request, which
    draws none."""
    largest: Tensor | None = None
    """[num_drafts + num_requests] float32: the largest logit of each row, NaN if it holds one; None: nobody has looked
    for it."""
