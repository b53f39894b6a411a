"""`RejectionSampler`: what becomes of the drafts of a step, and the tokens that its requests get."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.sample.sampler import SamplingMetadata, truncated_logits
from kernels.rejection_sampling import Drafts, Verdicts, rejection_sample


class DraftTokens(NamedTuple):
    """The drafts of a step, on the device of the logits."""

    token_ids: Tensor
    """[drafts] int64."""
    start_loc: Tensor
    """[requests + 1] int64: request r owns drafts start_loc[r] : start_loc[r + 1]."""
    first_rows: Tensor
    """[requests] int64: the first row of the logits that is request r's."""
    most: int
    """The largest number of drafts of a request."""
    probs: Tensor | None
    """[drafts, vocab_size] float32, what each was drawn from; None: all were certain."""


class RejectionSampler:
    """Verifies drafts by the distributions that their requests would be sampled from without any."""

    def __call__(self, processed: Tensor, metadata: SamplingMetadata, drafts: DraftTokens) -> Verdicts:
        """Accept drafts, and draw the token behind them.

        Args:
            processed: [drafts + requests, vocab_size] float32, as `process_logits` returns them, of each request the
                rows before each of its drafts and behind the last.
            metadata: parameters of the same rows.
            drafts: the drafts.
        """
        first, num_requests = drafts.first_rows, drafts.first_rows.numel()
        if metadata.all_greedy:
            greedy = torch.ones(num_requests, dtype=torch.bool, device=processed.device)
            seeds = positions = torch.zeros(num_requests, dtype=torch.int64, device=processed.device)
        else:
            rows = metadata.random_rows
            processed = processed.index_copy(0, rows, truncated_logits(processed[rows], metadata.random()))
            greedy = metadata.temperature[first] == 0.0
            seeds, positions = metadata.seeds[first], metadata.output_positions[first]
        return rejection_sample(
            processed,
            Drafts(drafts.token_ids, drafts.start_loc, drafts.most, drafts.probs, greedy, seeds, positions),
        )
