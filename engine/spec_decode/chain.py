"""Drafts one behind another: a drafter with KV of its own runs the step's tokens, then each draft to get the next.

One pass over all requests for the first draft, then one pass each over all that want more::

    places with their tokens ─► pass ─► states ─► logits ─► drafts ─┐
            ▲                                                       │ those that want more
            └───────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.spec_decode.drafts import Drafts, DraftVocabulary
from engine.spec_decode.proposer import Proposals, SampledStep
from engine.worker.copies import to_device


class Drafting(NamedTuple):
    """The requests that get drafts, and the positions of theirs that a pass runs."""

    places: NDArray[np.int64]
    """Of the requests, in the step."""
    first: NDArray[np.int64]
    """First position to run."""
    end: NDArray[np.int64]
    """Position behind the last."""
    num_wanted: NDArray[np.int64]
    """Drafts that each wants."""

    def only(self, kept: NDArray[np.int64]) -> Drafting:
        """Some of the requests, by their index here."""
        return Drafting(*(column[kept] for column in self))


class Passes(Protocol):
    """How a drafter runs."""

    vocabulary: DraftVocabulary
    lag: int
    """A draft at position i is run at position i - lag."""

    def run(self, step: SampledStep, drafting: Drafting, states: Tensor | None) -> Tensor:
        """One pass.

        Args:
            step: that the drafts follow.
            drafting: the positions to run.
            states: [requests, hidden_size], what the last pass gave for them; None: this is the first.

        Returns:
            [requests, hidden_size]: the state at the last position of each.
        """

    def compute_logits(self, states: Tensor) -> Tensor:
        """[requests, hidden_size] → [requests, draft_vocab_size] float32."""


def propose_chain(step: SampledStep, drafting: Drafting, passes: Passes) -> Proposals:
    """Draft for the requests of a step, beginning with `drafting`; all of its positions are run even if none is wanted:
    what the prefix cache holds, it holds for the drafter as well."""
    drafts = Drafts(step, passes.vocabulary)
    states: Tensor | None = None
    for number in range(max(1, int(step.num_wanted.max()))):
        if not drafting.places.size:
            break
        states = passes.run(step, drafting, states)
        drafting, states = _those(drafting, states, drafting.num_wanted > number)
        if not drafting.places.size:
            break
        drawn = drafts.draw(drafting.places, number, passes.compute_logits(states))
        at = step.batch.num_tokens[step.inputs.rows[drafting.places]] + number - passes.lag
        drafting, states = _those(drafting._replace(first=at, end=at + 1), states, drawn)
    return drafts.proposals()


def _those(drafting: Drafting, states: Tensor, mask: NDArray[np.bool_]) -> tuple[Drafting, Tensor]:
    """The requests that a mask marks, with their states."""
    if mask.all():
        return drafting, states
    kept = np.flatnonzero(mask)
    return drafting.only(kept), states[to_device(kept, states.device)]
