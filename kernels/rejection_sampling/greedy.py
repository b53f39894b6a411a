"""Rejection sampling of greedy requests on a CPU: a draft is accepted if it is the largest logit's token.

The same verdicts as the reference's, in numpy: with nothing drawn, a step of few drafts is all overhead.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kernels.rejection_sampling.drafts import Drafts, Verdicts


def rejection_sample_greedy(target_logits: Tensor, drafts: Drafts) -> Verdicts:
    """`rejection_sample` where all requests are greedy and the logits lie in the host's memory."""
    chosen = target_logits.numpy().argmax(axis=-1)
    start, token_ids = drafts.start_loc.numpy(), drafts.token_ids.numpy()
    num_drafts = np.diff(start)
    # Row of a draft: one row more per request before it.
    is_chosen = token_ids == chosen[np.arange(len(token_ids)) + np.arange(len(num_drafts)).repeat(num_drafts)]
    put_out = np.full((len(num_drafts), drafts.most + 1), -1, dtype=np.int64)
    num_accepted = np.zeros(len(num_drafts), dtype=np.int64)
    for request, (first, number) in enumerate(zip(start.tolist(), num_drafts.tolist(), strict=False)):
        verdicts = is_chosen[first : first + number]
        accepted = number if verdicts.all() else int(verdicts.argmin())
        put_out[request, :accepted] = token_ids[first : first + accepted]
        put_out[request, accepted] = chosen[first + request + accepted]
        num_accepted[request] = accepted
    return Verdicts(
        torch.from_numpy(put_out),
        torch.from_numpy(num_accepted),
        target_probs=torch.from_numpy(is_chosen.astype(np.float32)),
        draft_probs=drafts.own_probs(),
        uniforms=torch.zeros(len(token_ids)),
    )
