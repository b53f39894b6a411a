"""Rejection sampling of greedy requests on a CPU: a draft is accepted if it is the largest logit's token.

The same verdicts as the reference's, without tensors in between: where nothing is drawn, few drafts are all overhead.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from kernels.rejection_sampling.drafts import Drafts, Verdicts


def rejection_sample_greedy(target_logits: Tensor, drafts: Drafts) -> Verdicts:
    """`rejection_sample` where all requests are greedy and the logits lie in the host's memory."""
    logits = target_logits.numpy()
    of_rows = logits.argmax(axis=-1)
    # NaN is the largest, so that what was chosen of such a row is NaN.
    largest = logits[np.arange(len(logits)), of_rows]
    chosen, token_ids, start = of_rows.tolist(), drafts.token_ids.tolist(), drafts.start_loc.tolist()
    put_out, num_accepted, is_chosen = [], [], []
    for request, (first, end) in enumerate(pairwise(start)):
        # Row of a draft: one row more per request before it.
        verdicts = [token_ids[place] == chosen[place + request] for place in range(first, end)]
        accepted = verdicts.index(False) if False in verdicts else end - first
        bonus = chosen[first + request + accepted]
        put_out.append([*token_ids[first : first + accepted], bonus, *[-1] * (drafts.most - accepted)])
        num_accepted.append(accepted)
        is_chosen += verdicts
    return Verdicts(
        torch.tensor(put_out, dtype=torch.int64).view(len(num_accepted), drafts.most + 1),
        torch.tensor(num_accepted, dtype=torch.int64),
        target_probs=torch.tensor(is_chosen, dtype=torch.float32),
        draft_probs=drafts.own_probs(),
        uniforms=torch.zeros(len(token_ids), dtype=torch.float32),
        largest=torch.from_numpy(largest),
    )
