"""How far a head guesses what the target says: by draft position, along greedy answers it has not learned from.

A draft counts where it is the token that the target wrote and all drafts before it were. That is what the engine
accepts of a greedy request, except that here drafts begin at every token, there where the last ones ended.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from scripts.train_heads.examples import Examples
from scripts.train_heads.head import HeadInTraining


class Acceptance(NamedTuple):
    """What became of drafts."""

    by_position: list[float]
    """Share of the steps in which the draft at this position, and so all before it, was accepted."""
    num_steps: int

    @property
    def mean_length(self) -> float:
        """Tokens that a step yields: the drafts accepted and the target's own."""
        return 1.0 + sum(self.by_position)


def measure(head: HeadInTraining, examples: Examples) -> Acceptance:
    """Draft from every place of the held-out answers."""
    batches = [torch.stack(head.hits(batch)) for batch in examples.held_out()]
    hits = torch.cat(batches, dim=1) if batches else torch.zeros(1, 0, dtype=torch.bool)
    accepted = hits.cumprod(0).float()
    num_steps = hits.shape[1]
    return Acceptance(accepted.mean(1).tolist() if num_steps else [0.0] * len(hits), num_steps)
