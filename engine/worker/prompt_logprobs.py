"""Log probabilities of a prompt's own tokens, gathered while the prompt is computed chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.logprobs import TopLogprobs
from engine.sample.logprobs import top_logprobs

if TYPE_CHECKING:
    from engine.worker.input_batch import InputBatch
    from engine.worker.step_inputs import StepInputs

#: Places whose logits are computed together: a whole chunk's would take more memory than the rest of the step.
_PLACES = 64


class PromptLogprobs:
    """What is known so far of one request's prompt.

    Args:
        num_top: most likely tokens to tell per place.
    """

    def __init__(self, num_top: int) -> None:
        self.places: list[TopLogprobs] = []
        """From the prompt's second token on: nothing precedes the first."""
        self._num_top = num_top

    def extend(self, hidden: Tensor, next_token_ids: Tensor, compute_logits: Callable[[Tensor], Tensor]) -> None:
        """Take the next places in: their hidden states [n, hidden_size], and the prompt's tokens behind them [n]."""
        for states, tokens in zip(hidden.split(_PLACES), next_token_ids.split(_PLACES), strict=True):
            self.places += top_logprobs(compute_logits(states), tokens, [self._num_top] * len(tokens))


def gather_prompt_logprobs(
    batch: InputBatch, inputs: StepInputs, hidden: Tensor, compute_logits: Callable[[Tensor], Tensor]
) -> list[list[TopLogprobs] | None] | None:
    """Let the requests of a step that asked for it look at the hidden states of their prompts.

    Returns:
        Per request of the step all of its places, if the step completed its prompt. None if there is no such request.
    """
    completed: list[list[TopLogprobs] | None] = [None] * len(inputs.rows)
    starts = inputs.query_start_loc.tolist()
    for index, row in enumerate(inputs.rows.tolist()):
        progress = batch.prompt_logprobs.get(row)
        if progress is None:
            continue
        start, end = starts[index], starts[index + 1]
        first = int(inputs.positions[start])
        num_prompt_tokens = int(batch.num_prompt_tokens[row])
        # The place of the prompt's last token tells of the first output token: that is not the prompt's.
        num_places = min(first + end - start, num_prompt_tokens - 1) - first
        if num_places > 0:
            next_token_ids = torch.from_numpy(batch.token_ids[row, first + 1 : first + 1 + num_places].astype("int64"))
            progress.extend(hidden[start : start + num_places], next_token_ids.to(hidden.device), compute_logits)
        if first + end - start >= num_prompt_tokens:
            completed[index] = batch.prompt_logprobs.pop(row).places
    return completed if any(places is not None for places in completed) else None
