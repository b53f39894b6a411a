"""Truncated sampling: hide the unlikely tokens of each row before one is drawn.

- *min-p* keeps the tokens at least `min_p` times as likely as the likeliest (Nguyen et al., 2024).
- *top-k* keeps the k likeliest (Fan et al., 2018).
- *top-p*, the nucleus, keeps the likeliest tokens up to and including the one with which their probability reaches p
  (Holtzman et al., 2020); the probabilities are those of what top-k left.

Each comes down to one threshold per row, so only the sorted values are needed, not where they stood; tokens exactly
as likely as the last one kept are kept as well. What a row keeps depends on no other row.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


def mask_min_p(logits: Tensor, min_p: Tensor) -> Tensor:
    """Set the logits of tokens less likely than `min_p` times the likeliest one to -inf.

    Args:
        logits: [rows, vocab_size] float32.
        min_p: [rows] float32 in [0, 1]; 0 keeps everything.

    Returns:
        [rows, vocab_size] float32, a new tensor.
    """
    _check_rows(logits, min_p=min_p)
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


def _check_rows(logits: Tensor, **parameters: Tensor) -> None:
    if logits.dim() != 2:
        raise ValueError(f"logits must be [rows, vocab_size], got {list(logits.shape)}.")
    for name, parameter in parameters.items():
        if parameter.shape != logits.shape[:1]:
            raise ValueError(f"{name} must be [{logits.shape[0]}], got {list(parameter.shape)}.")
