"""`EagleProposer`: one layer that goes on from the model's own states, and then from the states it has guessed.

What it runs at position i is the state there and the token *after* it; the KV of that goes to slot i of the blocks that
the model's own layers use. After a step that put out t8, and of which no draft was rejected behind t7::

    the model    t5   t6   t7            ─► h5 h6 h7, t8
    the head     h5t6 h6t7 h7t8          ─► ĥ8 ─► d9     ĥ8d9 ─► ĥ9 ─► d10     ĥ9d10 ─► ĥ10 ─► d11
    slots         5    6    7                              8                     9

So a position can be run once the token after it is known, and a cached block is whole for the head as it is for the
model, save that the state before the first token that is not cached is missing: EAGLE drops the last block of a hit.

Source: EAGLE (Li et al. 2024), as a chain; the vocabulary in parts is EAGLE-3's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from engine.attention.backend import AttentionBackend
from engine.models.eagle_head import EagleHead, PackedEagleHead
from engine.spec_decode.chain import Drafting, propose_chain
from engine.spec_decode.draft_model import places_with_token_ids, plan_attention
from engine.spec_decode.drafts import DraftVocabulary
from engine.spec_decode.proposer import Proposals, SampledStep
from engine.worker.copies import to_device
from engine.worker.input_buffers import DeviceInputs
from engine.worker.step_inputs import StepInputs, flatten


class EagleProposer:
    """Runs an EAGLE head.

    Args:
        head: its KV cache bound.
        backend: who attends for the head.
        place: where the inputs of its passes go.
        vocab_size: of the model.
        confidence_threshold: see `Passes`.
    """

    lag = 1

    def __init__(
        self,
        head: EagleHead,
        backend: AttentionBackend[Any],
        place: Callable[[StepInputs, int], DeviceInputs],
        vocab_size: int,
        confidence_threshold: float = 0.0,
    ) -> None:
        self.head = head
        self.confidence_threshold = confidence_threshold
        self.chains_likeliest = isinstance(head, PackedEagleHead)
        self.vocabulary = DraftVocabulary(vocab_size, head.target_ids)
        self._backend = backend
        self._place = place

    def propose_draft_token_ids(self, step: SampledStep) -> Proposals:
        """See `Proposer`."""
        return propose_chain(step, _first_pass(step), self)

    def run(self, step: SampledStep, drafting: Drafting, states: Tensor | None) -> Tensor:
        """See `Passes`."""
        serials = [step.inputs.serials[place] for place in drafting.places.tolist()]
        lengths = drafting.end - drafting.first
        inputs = flatten(step.batch, serials, drafting.first, lengths, ahead=1)
        placed = self._place(inputs, inputs.input_ids.numel())
        if states is None:
            states = _of_rows(step.hidden, _places_of_tokens(step, drafting))
        metadata = plan_attention(self._backend, inputs, placed)
        hidden = self.head(placed.input_ids, states, placed.positions, metadata)
        return _of_rows(hidden, inputs.logits_indices)

    def compute_logits(self, states: Tensor) -> Tensor:
        """See `Passes`."""
        return self.head.compute_logits(states)

    def likeliest_chain(self, states: Tensor, first: Tensor, wanted: Tensor, block_tables: Tensor) -> Tensor:
        """See `Passes`."""
        assert isinstance(self.head, PackedEagleHead), "No other head chains."
        return self.head.likeliest_chain(states, first, wanted, block_tables, self.confidence_threshold)


def _of_rows(states: Tensor, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Tensor:
    """Some rows, in ascending order; those that stand side by side are not copied."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return states[first : last + 1]
    return states[to_device(rows, states.device)]


def _places_of_tokens(step: SampledStep, drafting: Drafting) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where in the step's super-sequence the positions of a first pass stand; each request begins at its own start."""
    starts = step.inputs.query_start_loc.numpy()[:-1][drafting.places]
    lengths = drafting.end - drafting.first
    before = lengths.cumsum() - lengths
    places: np.ndarray[Any, np.dtype[np.int64]] = np.arange(lengths.sum()) + (starts - before).repeat(lengths)
    return places


def _first_pass(step: SampledStep) -> Drafting:
    """The tokens of the step but for rejected drafts, of every request: what follows each of them is known.

    A draft needs the KV of the one before it: so there are no more than the blocks have room for.
    """
    batch, inputs = step.batch, step.inputs
    places = places_with_token_ids(step)
    rows = inputs.rows[places]
    num_slots, num_tokens = batch.block_tables[0].num_slots(rows), batch.num_tokens[rows]
    first = inputs.positions.numpy()[inputs.query_start_loc.numpy()[:-1]][places]
    end = np.minimum(inputs.seq_lens.numpy()[places], num_tokens - 1)
    num_wanted = np.minimum(step.num_wanted[places], (num_slots - num_tokens + 2).clip(0))
    # Of a request that could not be sampled even the last token may have nothing behind it.
    drafting, some = Drafting(places, first, end, num_wanted), end > first
    return drafting if some.all() else drafting.only(np.flatnonzero(some))
