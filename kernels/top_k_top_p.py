"""Truncated sampling: hide the unlikely tokens of each row before one is drawn.

- *min-p* keeps the tokens at least `min_p` times as likely as the likeliest (Nguyen et al., 2024).
- *top-k* keeps the k likeliest (Fan et al., 2018).
- *top-p*, the nucleus, keeps the likeliest tokens up to and including the one with which their probability reaches p
  (Holtzman et al., 2020); the probabilities are those of what top-k left.

Each comes down to one threshold per row, so only the sorted values are needed, not where they stood; tokens exactly
as likely as the last one kept are kept as well. What a row keeps depends on no other row.

In Triton nothing is sorted at all. Either threshold is the least v for which what lies *above* v, counted (top-k) or
summed (top-p), is still less than a target, and that can be searched for: eight candidates a pass over the row, the
range left after it a ninth of the one before. Candidates are taken from the order of float32 numbers as integers, so
that at most eleven passes end at the very value, with no tolerance. One program takes one row, which stays in cache.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from kernels.jit import jit, runs_on_triton
from kernels.specimen import Specimen

if TYPE_CHECKING:
    import triton.language as tl

_BLOCK = 1024

#: Candidates of one pass over a row.
_PIVOTS = 8


def mask_min_p(logits: Tensor, min_p: Tensor) -> Tensor:
    """Set the logits of tokens less likely than `min_p` times the likeliest one to -inf.

    Args:
        logits: [rows, vocab_size] float32.
        min_p: [rows] float32 in [0, 1]; 0 keeps everything.

    Returns:
        [rows, vocab_size] float32, a new tensor.
    """
    _check_rows(logits, min_p=min_p)
    return mask_min_p_triton(logits, min_p) if runs_on_triton(logits) else mask_min_p_reference(logits, min_p)


def mask_min_p_reference(logits: Tensor, min_p: Tensor) -> Tensor:
    """`mask_min_p` in torch."""
    # p / p_max >= min_p, in logarithms; log 0 is -inf, which is below nothing.
    threshold = logits.amax(dim=-1) + min_p.log()
    return logits.masked_fill(logits < threshold[:, None], -math.inf)


def mask_top_k_top_p(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Set the logits outside the top k, then those outside the nucleus of the rest, to -inf.

    Args:
        logits: [rows, vocab_size] float32; -inf marks what is hidden already.
        top_k: [rows] int64; at or below 0, or above the vocabulary, it keeps everything.
        top_p: [rows] float32 in (0, 1]; 1 keeps everything.

    Returns:
        [rows, vocab_size] float32, a new tensor; the likeliest token of a row is always kept.
    """
    _check_rows(logits, top_k=top_k, top_p=top_p)
    if runs_on_triton(logits):
        return mask_top_k_top_p_triton(logits, top_k, top_p)
    return mask_top_k_top_p_reference(logits, top_k, top_p)


def mask_top_k_top_p_reference(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """`mask_top_k_top_p` in torch, by sorting."""
    vocab_size = logits.shape[-1]
    descending = _sort_descending(logits)
    last_of_top_k = torch.where((top_k <= 0) | (top_k > vocab_size), vocab_size, top_k)[:, None] - 1
    threshold_k = descending.gather(-1, last_of_top_k)

    probs = torch.softmax(descending.masked_fill_(descending < threshold_k, -math.inf), dim=-1)
    reached_before = probs.cumsum(dim=-1).sub_(probs)
    # Rounding may let the sum reach 1 early, so a p of 1 is not left to it.
    in_nucleus = (reached_before < top_p[:, None]) | (top_p[:, None] >= 1.0)
    last_of_nucleus = in_nucleus.sum(dim=-1, keepdim=True).clamp_(min=1) - 1
    threshold = torch.maximum(threshold_k, descending.gather(-1, last_of_nucleus))
    return logits.masked_fill(logits < threshold, -math.inf)


def _sort_descending(logits: Tensor) -> Tensor:
    if logits.is_cuda:
        return logits.sort(dim=-1, descending=True).values
    # numpy sorts values alone, with vector instructions: over ten times as fast as torch's sort on a CPU.
    return torch.from_numpy(np.sort(logits.numpy(), axis=-1)).flip(-1)


def mask_min_p_triton(logits: Tensor, min_p: Tensor) -> Tensor:
    """`mask_min_p` in Triton."""
    rows, vocab_size = logits.shape
    out = torch.empty_like(logits, memory_format=torch.contiguous_format)
    if not out.numel():
        return out
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    _min_p_kernel[(rows,)](out, logits, min_p.log(), logits.stride(0), vocab_size, BLOCK=4 * _BLOCK, num_warps=8)
    return out


def mask_top_k_top_p_triton(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """`mask_top_k_top_p` in Triton, by searching the threshold."""
    rows, vocab_size = logits.shape
    out = torch.empty_like(logits, memory_format=torch.contiguous_format)
    if not out.numel():
        return out
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    _top_k_top_p_kernel[(rows,)](
        out,
        logits,
        top_k.contiguous(),
        top_p.contiguous(),
        logits.stride(0),
        vocab_size,
        PIVOTS=_PIVOTS,
        BLOCK=_BLOCK,
        num_warps=8,
    )
    return out


def _check_rows(logits: Tensor, **parameters: Tensor) -> None:
    if logits.dim() != 2:
        raise ValueError(f"logits must be [rows, vocab_size], got {list(logits.shape)}.")
    for name, parameter in parameters.items():
        if parameter.shape != logits.shape[:1]:
            raise ValueError(f"{name} must be [{logits.shape[0]}], got {list(parameter.shape)}.")


@jit
def _row_max(row: tl.tensor, vocab_size: int, BLOCK: tl.constexpr) -> tl.tensor:
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    for first in range(0, vocab_size, BLOCK):
        token = first + tl.arange(0, BLOCK)
        largest = tl.maximum(largest, tl.load(row + token, mask=token < vocab_size, other=float("-inf")))
    return tl.max(largest, axis=0)


@jit
def _hide_below(out: tl.tensor, row: tl.tensor, threshold: tl.tensor, vocab_size: int, BLOCK: tl.constexpr) -> None:
    for first in range(0, vocab_size, BLOCK):
        token = first + tl.arange(0, BLOCK)
        logit = tl.load(row + token, mask=token < vocab_size)
        tl.store(out + token, tl.where(logit < threshold, float("-inf"), logit), mask=token < vocab_size)


@jit
def _to_order(value: tl.tensor) -> tl.tensor:
    """Integers that are ordered as the float32 numbers are, in int64 so that differences fit."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).to(tl.int64)


@jit
def _from_order(order: tl.tensor) -> tl.tensor:
    bits = order.to(tl.int32)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@jit
def _mass_above(
    row: tl.tensor,
    pivot: tl.tensor,
    largest: tl.tensor,
    vocab_size: int,
    COUNT: tl.constexpr,
    PIVOTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """[PIVOTS] float32: how many tokens are above each pivot, or the sum of their exp(logit − largest).

    Counts are exact up to 2**24. Sums are taken in one order for every pivot, so they never rise with it.
    """
    above = tl.zeros([PIVOTS, BLOCK], tl.float32)
    for first in range(0, vocab_size, BLOCK):
        token = first + tl.arange(0, BLOCK)
        logit = tl.load(row + token, mask=token < vocab_size, other=float("-inf"))
        weight = tl.full([BLOCK], 1.0, tl.float32) if COUNT else tl.exp(logit - largest)
        above += tl.where(logit[None, :] > pivot[:, None], weight[None, :], 0.0)
    return tl.sum(above, axis=1)


@jit
def _least_below(
    row: tl.tensor,
    floor: tl.tensor,
    largest: tl.tensor,
    target: tl.tensor,
    vocab_size: int,
    COUNT: tl.constexpr,
    PIVOTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """The least number from `floor` to `largest` with less than `target` above it; `largest` if none has."""
    low, high = _to_order(floor), _to_order(largest)
    part = tl.arange(0, PIVOTS).to(tl.int64) + 1
    while low < high:
        # From low on and below high, so that every pass leaves less.
        order = low + (high - low) * part // (PIVOTS + 1)
        mass = _mass_above(row, _from_order(order), largest, vocab_size, COUNT, PIVOTS, BLOCK)
        low = tl.max(tl.where(mass < target, low, order + 1), axis=0)
        high = tl.min(tl.where(mass < target, order, high), axis=0)
    return _from_order(high)


@jit
def _min_p_kernel(
    out: tl.tensor,
    logits: tl.tensor,
    log_min_p: tl.tensor,
    logits_stride: int,
    vocab_size: int,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_stride
    threshold = _row_max(logits, vocab_size, BLOCK) + tl.load(log_min_p + row)
    _hide_below(out + row * vocab_size, logits, threshold, vocab_size, BLOCK)


@jit
def _top_k_top_p_kernel(
    out: tl.tensor,
    logits: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    logits_stride: int,
    vocab_size: int,
    PIVOTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_stride
    k, p = tl.load(top_k + row), tl.load(top_p + row)
    largest = _row_max(logits, vocab_size, BLOCK)
    threshold = tl.full((), float("-inf"), tl.float32)
    if (k > 0) & (k < vocab_size):
        threshold = _least_below(logits, threshold, largest, k.to(tl.float32), vocab_size, True, PIVOTS, BLOCK)
    if p < 1.0:
        # The nucleus is one of what top-k left.
        total = tl.zeros([BLOCK], tl.float32)
        for first in range(0, vocab_size, BLOCK):
            token = first + tl.arange(0, BLOCK)
            logit = tl.load(logits + token, mask=token < vocab_size, other=float("-inf"))
            total += tl.where(logit >= threshold, tl.exp(logit - largest), 0.0)
        target = p * tl.sum(total, axis=0)
        threshold = _least_below(logits, threshold, largest, target, vocab_size, False, PIVOTS, BLOCK)
    _hide_below(out + row * vocab_size, logits, threshold, vocab_size, BLOCK)


def specimens() -> list[Specimen]:
    """A row of 131072 tokens, with eleven passes for each of both thresholds."""
    vocab_size, passes = 131072, 22
    rows = {"out": "*fp32", "logits": "*fp32"}
    sizes = {"logits_stride": "i32:16", "vocab_size": "i32:16"}
    return [
        Specimen(
            "min_p",
            _min_p_kernel,
            {**rows, "log_min_p": "*fp32", **sizes},
            {"BLOCK": 4 * _BLOCK},
            num_warps=8,
            num_stages=2,
            flops=2 * vocab_size,
            bytes=2 * 4 * vocab_size,
        ),
        Specimen(
            "top_k_top_p",
            _top_k_top_p_kernel,
            {**rows, "top_k": "*i64", "top_p": "*fp32", **sizes},
            {"PIVOTS": _PIVOTS, "BLOCK": _BLOCK},
            num_warps=8,
            num_stages=2,
            flops=(2 * _PIVOTS + 2) * passes * vocab_size,
            bytes=2 * 4 * vocab_size,
        ),
    ]
