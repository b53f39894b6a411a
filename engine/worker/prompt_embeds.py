"""Prompts given as embeddings: what the decoder starts from where a prompt has no token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from engine.worker.input_batch import InputBatch
    from engine.worker.step_inputs import StepInputs


def input_embeds(batch: InputBatch, inputs: StepInputs, embed_tokens: Tensor) -> Tensor | None:
    """Embeddings of a step's super-sequence; None if all of it is token ids, which the decoder embeds itself.

    Args:
        batch: the persistent batch.
        inputs: the super-sequence.
        embed_tokens: the model's embedding table [vocab_size, hidden_size].

    Returns:
        [num_tokens, hidden_size], in the table's dtype and on its device.
    """
    if not batch.prompt_embeds.keys() & inputs.rows.tolist():
        return None
    embeds = F.embedding(inputs.input_ids.to(embed_tokens.device), embed_tokens)
    starts = inputs.query_start_loc.tolist()
    for index, row in enumerate(inputs.rows.tolist()):
        prompt = batch.prompt_embeds.get(row)
        if prompt is not None:
            first = int(inputs.positions[starts[index]])
            # A chunk may end behind the prompt, where output tokens are computed anew after a preemption.
            chunk = prompt[first : first + starts[index + 1] - starts[index]]
            embeds[starts[index] : starts[index] + len(chunk)] = chunk.to(embeds)
    return embeds
