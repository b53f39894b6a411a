"""`DraftModelProposer`: a smaller model with the same vocabulary says what the large one is likely to say.

Its layers keep their KV in the blocks of the large model's, so whatever happens to a block, happened to both. After
each step it runs the same tokens, and then its own drafts one after another, into the lookahead slots::

    the model    t5 t6 t7         ─► t8                             KV of 5, 6, 7
    drafter      t5 t6 t7 t8      ─► d9      d9 ─► d10      d10 ─► d11     KV of 5 … 8, and of drafts in 9, 10

What a rejected draft has left in its slot, the next tokens overwrite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from engine.attention.backend import AttentionBackend
from engine.layers.attention import AttentionMetadata
from engine.models.causal_lm import CausalLM
from engine.models.packed_decoder import PackedDecoder
from engine.spec_decode.chain import Drafting, propose_chain
from engine.spec_decode.drafts import DraftVocabulary
from engine.spec_decode.proposer import Proposals, SampledStep
from engine.worker.copies import to_device
from engine.worker.input_buffers import DeviceInputs
from engine.worker.step_inputs import StepInputs, flatten
from kernels.cpu.draft_chain import draft_chain


class DraftModelProposer:
    """Runs a draft model.

    Args:
        decoder: the draft model, its KV cache bound.
        backend: who attends for it.
        place: where the inputs of its passes go.
        confidence_threshold: see `Passes`.
    """

    lag = 0

    def __init__(
        self,
        decoder: CausalLM,
        backend: AttentionBackend[Any],
        place: Callable[[StepInputs, int], DeviceInputs],
        confidence_threshold: float = 0.0,
    ) -> None:
        self.decoder = decoder
        self.confidence_threshold = confidence_threshold
        self.backend = backend
        self.chains_likeliest = isinstance(decoder, PackedDecoder)
        self.vocabulary = DraftVocabulary(decoder.architecture.vocab_size)
        self._place = place

    def propose_draft_token_ids(self, step: SampledStep) -> Proposals:
        """See `Proposer`."""
        return propose_chain(step, _first_pass(step), self)

    def run(self, step: SampledStep, drafting: Drafting, states: Tensor | None) -> Tensor:
        """See `Passes`."""
        serials = [step.inputs.serials[place] for place in drafting.places.tolist()]
        inputs = flatten(step.batch, serials, drafting.first, drafting.end - drafting.first)
        placed = self._place(inputs, inputs.input_ids.numel())
        hidden = self.decoder(placed.input_ids, placed.positions, plan_attention(self.backend, inputs, placed))
        return hidden[to_device(inputs.logits_indices, hidden.device)]

    def compute_logits(self, states: Tensor) -> Tensor:
        """See `Passes`."""
        return self.decoder.compute_logits(states)

    def likeliest_chain(self, states: Tensor, first: Tensor, wanted: Tensor, block_tables: Tensor) -> Tensor:
        """See `Passes`."""
        assert isinstance(self.decoder, PackedDecoder), "No other decoder chains."
        return draft_chain(self.decoder.drafter(), states, first, wanted, block_tables, self.confidence_threshold)


def plan_attention(backend: AttentionBackend[Any], inputs: StepInputs, placed: DeviceInputs) -> AttentionMetadata:
    """What a drafter's layers, all of full attention, need of a pass."""
    plans = (backend.plan(host, device, None) for host, device in zip(inputs.groups, placed.groups, strict=True))
    return AttentionMetadata(tuple(plans))


def places_with_token_ids(step: SampledStep) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The requests of a step but those whose prompts came as the large model's embeddings: a drafter has none."""
    rows = step.inputs.rows.tolist()
    if not step.batch.prompt_embeds:
        return np.arange(len(rows))
    return np.array([at for at, row in enumerate(rows) if row not in step.batch.prompt_embeds], dtype=np.int64)


def _first_pass(step: SampledStep) -> Drafting:
    """All tokens of the step, and those that came of it as far as they have slots, of all requests.

    A draft needs the KV of the one before it: so there are no more than the blocks have room for.
    """
    batch, inputs = step.batch, step.inputs
    places = places_with_token_ids(step)
    rows = inputs.rows[places]
    num_slots, num_tokens = batch.block_tables[0].num_slots(rows), batch.num_tokens[rows]
    first = inputs.positions.numpy()[inputs.query_start_loc.numpy()[:-1]][places]
    scheduled_end = inputs.seq_lens.numpy()[places]
    sampled = step.num_sampled[places] > 0
    num_wanted = np.minimum(step.num_wanted[places], (num_slots - num_tokens + 1).clip(0))
    return Drafting(places, first, np.where(sampled, np.minimum(num_tokens, num_slots), scheduled_end), num_wanted)
