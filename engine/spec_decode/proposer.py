"""What a drafter is: whoever proposes, after each step, tokens for the next one to verify."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.speculation import NgramMatch
from engine.worker.input_batch import InputBatch
from engine.worker.step_inputs import StepInputs


class SampledStep(NamedTuple):
    """A step whose tokens have been sampled and are in the batch."""

    batch: InputBatch
    inputs: StepInputs
    hidden: Tensor
    """[num_tokens, hidden_size]: the model's states after its last norm, of the whole super-sequence."""
    num_sampled: NDArray[np.int64]
    """[num_requests]: tokens that each request got; 0 in the middle of its prompt."""
    num_wanted: NDArray[np.int64]
    """[num_requests]: most drafts that each may bring along; 0 for one without a token, near its end, or pausing."""


class Proposals(NamedTuple):
    """The drafts for the next step, request by request as the step has them."""

    draft_token_ids: list[list[int]]
    probs: dict[int, Tensor] | None = None
    """By serial, [drafts, vocab_size] float32: the distributions that drafts were drawn from; those of a request that
    is not here, of greedy ones for instance, were certain."""
    matches: list[NgramMatch | None] | None = None
    """Where an n-gram was found."""


class Proposer(Protocol):
    """A drafter."""

    def propose_draft_token_ids(self, step: SampledStep) -> Proposals:
        """Propose tokens to follow those that a step has sampled.

        A drafter with KV of its own writes that of all tokens of the step here: what the prefix cache holds, it holds
        for both.
        """


def num_wanted_drafts(
    batch: InputBatch, rows: NDArray[np.int64], num_sampled: NDArray[np.int64], most: list[int]
) -> NDArray[np.int64]:
    """How many drafts requests may bring along, [num_requests].

    No more than `most` [num_requests], which the scheduler allows, and none before a request has its first token.
    A step puts out one token more than it accepts: so one less than is left to the request's own end.
    """
    left = batch.max_num_tokens[rows] - batch.num_tokens[rows] - 1
    return np.where(num_sampled > 0, left.clip(0, most), 0)
