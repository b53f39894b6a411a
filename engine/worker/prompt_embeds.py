"""Prompts given as embeddings: what the decoder starts from where a prompt has no token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from engine.models.causal_lm import CausalLM
    from engine.worker.input_batch import InputBatch
    from engine.worker.step_inputs import StepInputs


def input_embeds(batch: InputBatch, inputs: StepInputs, model: CausalLM) -> Tensor | None:
    """Embeddings of a step's super-sequence; None if all of it is token ids, which the decoder embeds itself.

    Args:
        batch: the persistent batch.
        inputs: the super-sequence.
        model: whose embeddings the others are.

    Returns:
        [num_tokens, hidden_size], in the dtype and on the device of the model's own.
    """
    if not batch.prompt_embeds.keys() & inputs.rows.tolist():
        return None
    embeds = model.embed(inputs.input_ids.to(model.device))
    starts = inputs.query_start_loc.tolist()
    for index, row in enumerate(inputs.rows.tolist()):
        prompt = batch.prompt_embeds.get(row)
        if prompt is not None:
            first = int(inputs.positions[starts[index]])
            # A chunk may end behind the prompt, where output tokens are computed anew after a preemption.
            chunk = prompt[first : first + starts[index + 1] - starts[index]]
            embeds[starts[index] : starts[index] + len(chunk)] = chunk.to(embeds)
    return embeds
