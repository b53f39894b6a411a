"""Rejection sampling of draft tokens (Leviathan et al., 2023; Chen et al., 2023): output of exactly the target model's
distribution, whatever the drafter's is.

A request brings k draft tokens; the target model has given its distribution at each of their places, and at the one
behind the last. From left to right, with p the target's distribution at a place and q the drafter's:

- *accept* the draft d if U < p(d) / q(d), so with probability min(1, p(d) / q(d));
- at the first rejection put a *recovered* token there, drawn from max(p − q, 0) divided by its sum, and stop: the
  drafts behind it continue a text that no longer is;
- if none was rejected, add a *bonus* token, drawn from the target's distribution behind the last draft.

A drafter that tells no probabilities, such as n-gram lookup, is one whose q is 1 at the draft. A greedy row is one
whose p is 1 at the largest logit: a draft is accepted if it is that token, which else takes its place.

U is the number of the stream ACCEPT at the draft's output position and vocabulary index; recovered tokens are drawn
by Gumbel-max with the stream RECOVER, bonus tokens with TARGET, just as without speculation.

The rows of `target_logits` for requests with 2, 0 and 3 drafts::

    draft_start_loc    0     2 2         5
    draft_token_ids    d0 d1     d2 d3 d4
    target row         0  1  2   3   4  5  6  7
                       d0 d1 +   +   d2 d3 d4 +        +: behind the last draft
"""

from __future__ import annotations

from torch import Tensor

from kernels.jit import runs_on_triton
from kernels.rejection_sampling.drafts import Drafts, Verdicts
from kernels.rejection_sampling.greedy import rejection_sample_greedy
from kernels.rejection_sampling.reference import (
    recovered_distribution,
    rejection_sample_reference,
    target_distribution,
)
from kernels.rejection_sampling.triton_kernels import rejection_sample_triton

__all__ = ["Drafts", "Verdicts", "recovered_distribution", "rejection_sample", "target_distribution"]


def rejection_sample(target_logits: Tensor, drafts: Drafts) -> Verdicts:
    """Accept drafts, and draw the token behind them.

    Args:
        target_logits: [num_drafts + num_requests, vocab_size] float32, laid out as above. Logits of random rows are
            over temperature and truncated already: their softmax is the target's distribution.
        drafts: the draft tokens.

    Raises:
        ValueError: shapes that contradict each other.
    """
    _check_shapes(target_logits, drafts)
    if runs_on_triton(target_logits):
        return rejection_sample_triton(target_logits, drafts)
    if not target_logits.is_cuda and bool(drafts.greedy.all()):
        return rejection_sample_greedy(target_logits, drafts)
    return rejection_sample_reference(target_logits, drafts)


def _check_shapes(target_logits: Tensor, drafts: Drafts) -> None:
    num_requests, num_drafts = drafts.seeds.numel(), drafts.token_ids.numel()
    if target_logits.dim() != 2 or target_logits.shape[0] != num_drafts + num_requests:
        raise ValueError(
            f"target_logits must be [{num_drafts} drafts + {num_requests} requests, vocab_size], "
            f"got {list(target_logits.shape)}."
        )
    per_request = {tuple(drafts.greedy.shape), tuple(drafts.seeds.shape), tuple(drafts.positions.shape)}
    if per_request != {(num_requests,)} or drafts.start_loc.shape != (num_requests + 1,):
        raise ValueError("greedy, seeds and positions must be [num_requests], and start_loc one longer.")
    if drafts.probs is not None and drafts.probs.shape != (num_drafts, target_logits.shape[1]):
        raise ValueError(
            f"probs must be [{num_drafts}, {target_logits.shape[1]}] or None, got {list(drafts.probs.shape)}."
        )
