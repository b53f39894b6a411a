"""Penalties: treat the tokens that have occurred already otherwise than new ones.

With c(t) the times that the output holds token t, and o(t) = 1 where c(t) > 0, else 0:

- *repetition* r (Keskar et al., "CTRL", 2019), for tokens of prompt or output:
  l(t) ← l(t) / r if l(t) > 0, else l(t) · r
- *frequency* f and *presence* p (as OpenAI defines them), for tokens of the output:
  l(t) ← l(t) − f · c(t) − p · o(t)

in this order, as vLLM applies them. r = 1, f = 0 and p = 0 change nothing. No row depends on another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.jit import cdiv, jit, runs_on_triton
from kernels.specimen import Specimen

if TYPE_CHECKING:
    import triton.language as tl

_BLOCK = 1024


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
    penalties = presence_penalties, frequency_penalties, repetition_penalties
    if runs_on_triton(logits):
        return apply_penalties_triton(logits, prompt_counts, output_counts, *penalties)
    return apply_penalties_reference(logits, prompt_counts, output_counts, *penalties)


def apply_penalties_reference(
    logits: Tensor,
    prompt_counts: Tensor,
    output_counts: Tensor,
    presence_penalties: Tensor,
    frequency_penalties: Tensor,
    repetition_penalties: Tensor,
) -> Tensor:
    """`apply_penalties` in torch."""
    in_output = output_counts > 0
    repetition = torch.where(in_output | (prompt_counts > 0), repetition_penalties[:, None], 1.0)
    penalised = torch.where(logits > 0, logits / repetition, logits * repetition)
    penalised -= frequency_penalties[:, None] * output_counts
    penalised -= presence_penalties[:, None] * in_output
    return penalised


def apply_penalties_triton(
    logits: Tensor,
    prompt_counts: Tensor,
    output_counts: Tensor,
    presence_penalties: Tensor,
    frequency_penalties: Tensor,
    repetition_penalties: Tensor,
) -> Tensor:
    """`apply_penalties` in Triton, to the same bits: every operation is rounded as torch rounds it."""
    rows, size = logits.shape
    out = torch.empty_like(logits, memory_format=torch.contiguous_format)
    if not out.numel():
        return out
    _penalties_kernel[(rows, cdiv(size, _BLOCK))](
        out,
        logits.contiguous(),
        prompt_counts.contiguous(),
        output_counts.contiguous(),
        presence_penalties.contiguous(),
        frequency_penalties.contiguous(),
        repetition_penalties.contiguous(),
        size,
        BLOCK=_BLOCK,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return out


@jit
def _penalties_kernel(
    out: tl.tensor,
    logits: tl.tensor,
    prompt_counts: tl.tensor,
    output_counts: tl.tensor,
    presence: tl.tensor,
    frequency: tl.tensor,
    repetition: tl.tensor,
    size: int,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < size
    at = row * size + token
    logit = tl.load(logits + at, mask=inside, other=0.0)
    in_prompt = tl.load(prompt_counts + at, mask=inside, other=0) > 0
    count = tl.load(output_counts + at, mask=inside, other=0)
    in_output = count > 0
    factor = tl.where(in_prompt | in_output, tl.load(repetition + row), 1.0)
    logit = tl.where(logit > 0, tl.div_rn(logit, factor), logit * factor)
    logit -= tl.load(frequency + row) * count.to(tl.float32)
    logit -= tl.load(presence + row) * in_output.to(tl.float32)
    tl.store(out + at, logit, mask=inside)


def specimens() -> list[Specimen]:
    """1024 tokens of a row."""
    pointers = dict.fromkeys(("out", "logits", "presence", "frequency", "repetition"), "*fp32")
    counts = dict.fromkeys(("prompt_counts", "output_counts"), "*i32")
    return [
        Specimen(
            "penalties",
            _penalties_kernel,
            {**pointers, **counts, "size": "i32:16"},
            {"BLOCK": _BLOCK},
            num_warps=4,
            num_stages=2,
            flops=5 * _BLOCK,
            bytes=4 * 4 * _BLOCK,
        )
    ]
