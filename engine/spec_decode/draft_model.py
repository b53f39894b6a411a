"""`DraftModelProposer`: a smaller model with the same vocabulary says what the large one is likely to say.

Its layers keep their KV in the blocks of the large model's, so whatever happens to a block, happened to both. After
each step it runs the same tokens, and then its own drafts one after another, into the lookahead slots::

    the model    t5 t6 t7         ─► t8                             KV of 5, 6, 7
    drafter      t5 t6 t7 t8      ─► d9      d9 ─► d10      d10 ─► d11     KV of 5 … 8, and of drafts in 9, 10
                 one pass over all requests  one pass each over all that want more

What a rejected draft has left in its slot, the next tokens overwrite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.backend import AttentionBackend
from engine.layers.attention import AttentionMetadata
from engine.models.causal_lm import CausalLM
from engine.sample.sampler import SamplingMetadata, process_logits, truncated_logits
from engine.spec_decode.proposer import Proposals, SampledStep
from engine.worker.copies import read_back, to_device
from engine.worker.input_batch import InputBatch
from engine.worker.input_buffers import DeviceInputs
from engine.worker.step_inputs import StepInputs, flatten
from kernels.gumbel_sampling import argmax, gumbel_max
from kernels.philox import Stream

#: In place of a draft, where the logits do not admit any.
NOTHING = -1


class _Drafting(NamedTuple):
    """The requests that get drafts, and the tokens of theirs that a pass runs."""

    places: NDArray[np.int64]
    """Of the requests, in the step."""
    first: NDArray[np.int64]
    """Position of the first token to run."""
    end: NDArray[np.int64]
    """Position behind the last."""
    num_wanted: NDArray[np.int64]
    """Drafts that each wants."""

    def only(self, kept: NDArray[np.int64]) -> _Drafting:
        """Some of the requests, by their index here."""
        return _Drafting(*(column[kept] for column in self))

    def wanting(self, number: int, hidden: Tensor) -> tuple[_Drafting, Tensor]:
        """The requests that want more drafts than `number`, and of `hidden` [requests, hidden_size] their rows."""
        kept = np.flatnonzero(self.num_wanted > number)
        return self.only(kept), hidden[to_device(kept, hidden.device)]

    def behind(self, positions: NDArray[np.int64], drawn: NDArray[np.bool_]) -> _Drafting:
        """The requests for which a draft was drawn, with that draft, at its position, to run next."""
        return self._replace(first=positions, end=positions + 1).only(np.flatnonzero(drawn))


class DraftModelProposer:
    """Runs a draft model.

    Args:
        decoder: the draft model, its KV cache bound.
        backend: who attends for it.
        place: where the inputs of its passes go.
    """

    def __init__(
        self,
        decoder: CausalLM,
        backend: AttentionBackend[Any],
        place: Callable[[StepInputs, int], DeviceInputs],
    ) -> None:
        self.decoder = decoder
        self.backend = backend
        self._place = place

    def propose_draft_token_ids(self, step: SampledStep) -> Proposals:
        """See `Proposer`."""
        batch, serials = step.batch, step.inputs.serials
        drafts: list[list[int]] = [[] for _ in serials]
        probs: dict[int, list[Tensor]] = {}
        drafting = _first_pass(step)
        for number in range(max(1, int(step.num_wanted.max()))):
            if not drafting.places.size:
                break
            hidden = self._forward(batch, [serials[place] for place in drafting.places.tolist()], drafting)
            drafting, hidden = drafting.wanting(number, hidden)
            if not drafting.places.size:
                break
            rows = step.inputs.rows[drafting.places]
            metadata = batch.sampling_metadata(rows, hidden.device, np.full_like(rows, number))
            token_ids, drawn_from = _draw(self.decoder.compute_logits(hidden), metadata)
            batch.token_ids[rows, batch.num_tokens[rows] + number] = token_ids
            for index, place in enumerate(drafting.places.tolist()):
                if token_ids[index] != NOTHING:
                    drafts[place].append(int(token_ids[index]))
                    if index in drawn_from:
                        probs.setdefault(serials[place], []).append(drawn_from[index])
            drafting = drafting.behind(batch.num_tokens[rows] + number, token_ids != NOTHING)
        return Proposals(drafts, {serial: torch.stack(each) for serial, each in probs.items()})

    def _forward(self, batch: InputBatch, serials: list[int], drafting: _Drafting) -> Tensor:
        """[requests, hidden_size]: the draft model's state at the last token of each."""
        inputs = flatten(batch, serials, drafting.first, drafting.end - drafting.first)
        placed = self._place(inputs, inputs.input_ids.numel())
        plans = tuple(
            self.backend.plan(host, device, None) for host, device in zip(inputs.groups, placed.groups, strict=True)
        )
        hidden = self.decoder(placed.input_ids, placed.positions, AttentionMetadata(plans))
        return hidden[to_device(inputs.logits_indices, hidden.device)]


def _first_pass(step: SampledStep) -> _Drafting:
    """All tokens of the step, and those that came of it as far as they have slots, of all requests.

    A draft needs the KV of the one before it: so there are no more than the blocks have room for.
    """
    batch, inputs = step.batch, step.inputs
    # The draft model has no embeddings of a prompt that came as the large one's.
    places = np.array([at for at, row in enumerate(inputs.rows.tolist()) if row not in batch.prompt_embeds], dtype=int)
    rows = inputs.rows[places]
    num_slots, num_tokens = batch.block_tables[0].num_slots(rows), batch.num_tokens[rows]
    first = inputs.positions.numpy()[inputs.query_start_loc.numpy()[:-1]][places]
    scheduled_end = inputs.seq_lens.numpy()[places]
    sampled = step.num_sampled[places] > 0
    num_wanted = np.minimum(step.num_wanted[places], (num_slots - num_tokens + 1).clip(0))
    return _Drafting(places, first, np.where(sampled, np.minimum(num_tokens, num_slots), scheduled_end), num_wanted)


def _draw(logits: Tensor, metadata: SamplingMetadata) -> tuple[NDArray[np.int64], dict[int, Tensor]]:
    """One draft per row of the draft model's logits [rows, vocab_size], drawn as the large model's tokens are.

    Returns:
        The tokens [rows], `NOTHING` where none can be drawn; and by random row the distribution that its token was
        drawn from.
    """
    processed = process_logits(logits, metadata)
    drawn_from: dict[int, Tensor] = {}
    if metadata.all_greedy:
        on_device = argmax(processed)
    else:
        rows = metadata.random_rows
        random = truncated_logits(processed[rows], metadata.random())
        distributions = torch.softmax(random, dim=-1)
        drawn_from = dict(zip(rows.tolist(), distributions, strict=True))
        processed = processed.index_copy(0, rows, random)
        is_random = (metadata.temperature > 0).float()
        on_device = gumbel_max(processed, is_random, metadata.seeds, metadata.output_positions, Stream.DRAFT)
    token_ids, largest = read_back(on_device, processed.amax(dim=-1))
    drawn: NDArray[np.int64] = np.where(np.isfinite(largest.numpy()), token_ids.numpy(), NOTHING)
    return drawn, drawn_from
