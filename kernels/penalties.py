"""Penalties: treat the tokens that have occurred already otherwise than new ones.

With c(t) the times that the output holds token t, and o(t) = 1 where c(t) > 0, else 0:

- *repetition* r (Keskar et al., "CTRL", 2019), for tokens of prompt or output:
  l(t) ← l(t) / r if l(t) > 0, else l(t) · r
- *frequency* f and *presence* p (as OpenAI defines them), for tokens of the output:
  l(t) ← l(t) − f · c(t) − p · o(t)

in this order, as vLLM applies them. r = 1, f = 0 and p = 0 change nothing. No row depends on another.
"""

from __future__ import annotations

import torch
from torch import Tensor


def apply_penalties(
    logits: Tensor,
    prompt_counts: Tensor,
    output_counts: Tensor,
    presence_penalties: Tensor,
    frequency_penalties: Tensor,
    repetition_penalties: Tensor,
) -> Tensor:
    """Penalise the tokens of prompts and outputs.

    Args:
        logits: [rows, n] float32 of some tokens, or of the whole vocabulary; -inf marks what is hidden, and stays.
        prompt_counts: [rows, n] int32, how often the row's prompt holds each of these tokens.
        output_counts: [rows, n] int32, how often its output does.
        presence_penalties: [rows] float32.
        frequency_penalties: [rows] float32.
        repetition_penalties: [rows] float32 > 0.

    Returns:
        [rows, n] float32, a new tensor.
    """
    if logits.dim() != 2 or prompt_counts.shape != logits.shape or output_counts.shape != logits.shape:
        shapes = [list(tensor.shape) for tensor in (logits, prompt_counts, output_counts)]
        raise ValueError(f"logits and counts must be alike [rows, n], got {', '.join(map(str, shapes))}.")
    in_output = output_counts > 0
    repetition = torch.where(in_output | (prompt_counts > 0), repetition_penalties[:, None], 1.0)
    penalised = torch.where(logits > 0, logits / repetition, logits * repetition)
    penalised -= frequency_penalties[:, None] * output_counts
    penalised -= presence_penalties[:, None] * in_output
    return penalised
