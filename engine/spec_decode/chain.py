"""Drafts one behind another: a drafter with KV of its own runs the step's tokens, then each draft to get the next.

One pass over all requests for the first draft, then one pass each over all that want more::

    places with their tokens ─► pass ─► states ─► logits ─► drafts ─┐
            ▲                                                       │ those that want more
            └───────────────────────────────────────────────────────┘

Where every draft is the likeliest token and the drafter runs in the CPU's kernels, they go round by themselves.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch
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
    chains_likeliest: bool
    """Whether it runs where a chain is one call."""
    confidence_threshold: float
    """Nothing is drafted behind a draft of a lower probability."""

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

    def likeliest_chain(self, states: Tensor, first: Tensor, wanted: Tensor, block_tables: Tensor) -> Tensor:
        """All drafts behind a first pass, each the likeliest token, in one call, if `chains_likeliest`.

        Args:
            states: [requests, hidden_size], of the first pass.
            first: [requests] int64: position at which the first draft is run.
            wanted: [requests] int64: drafts that each wants, at least one.
            block_tables: [requests, max_blocks] int32.

        Returns:
            [most wanted, requests] int64, `NOTHING` behind the last of each.
        """


def propose_chain(step: SampledStep, drafting: Drafting, passes: Passes) -> Proposals:
    """Draft for the requests of a step, beginning with `drafting`; all of its positions are run even if none is wanted:
    what the prefix cache holds, it holds for the drafter as well."""
    drafts = Drafts(step, passes.vocabulary, passes.confidence_threshold)
    if not drafting.places.size:
        return drafts.proposals()
    states = passes.run(step, drafting, None)
    drafting, states = _those(drafting, states, drafting.num_wanted > 0)
    if drafting.places.size and passes.chains_likeliest and step.batch.take_largest(step.inputs.rows[drafting.places]):
        drafts.take(drafting.places, drafting.num_wanted, _likeliest_chain(step, drafting, states, passes))
        return drafts.proposals()
    number = 0
    while drafting.places.size:
        may_go_on = drafts.draw(drafting.places, number, passes.compute_logits(states))
        at = _first_positions(step, drafting, passes) + number
        number += 1
        wants_more = may_go_on & (drafting.num_wanted > number)
        drafting, states = _those(drafting._replace(first=at, end=at + 1), states, wants_more)
        if drafting.places.size:
            states = passes.run(step, drafting, states)
    return drafts.proposals()


def _likeliest_chain(step: SampledStep, drafting: Drafting, states: Tensor, passes: Passes) -> Tensor:
    first, table = _first_positions(step, drafting, passes), step.batch.block_tables[0]
    most_blocks = -(-int((first + drafting.num_wanted).max()) // table.block_size)
    return passes.likeliest_chain(
        states,
        torch.from_numpy(first),
        torch.from_numpy(drafting.num_wanted),
        torch.from_numpy(table.table[step.inputs.rows[drafting.places], :most_blocks]),
    )


def _first_positions(step: SampledStep, drafting: Drafting, passes: Passes) -> NDArray[np.int64]:
    """[requests]: where the first draft of each is run."""
    first: NDArray[np.int64] = step.batch.num_tokens[step.inputs.rows[drafting.places]] - passes.lag
    return first


def _those(drafting: Drafting, states: Tensor, mask: NDArray[np.bool_]) -> tuple[Drafting, Tensor]:
    """The requests that a mask marks, with their states."""
    if mask.all():
        return drafting, states
    kept = np.flatnonzero(mask)
    return drafting.only(kept), states[to_device(kept, states.device)]
