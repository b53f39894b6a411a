"""Hides what the grammars of guided requests do not allow, behind everything else that a request does to its logits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.logits_bitmask import WORD_BITS, apply_token_bitmask


def mask_guided_rows(
    processed: Tensor, logits: Tensor, bitmask: Tensor, rows: Tensor, eos_token_ids: Sequence[int], *, constrained: bool
) -> Tensor:
    """Mask the logits of guided rows.

    A grammar that has come to its end allows EOS alone, and then EOS is sampled, whatever else hides it: `min_tokens`
    asks for more than there is, `allowed_token_ids` may have left it out.

    Args:
        processed: [rows, vocab_size] float32, as `process_logits` returns them.
        logits: the same as the model gave them; left as they are.
        bitmask: [guided rows, ceil(vocab_size / 32)] int32, bit 1 = allowed; on the host.
        rows: [guided rows] int64, the row that each mask is for; on the device of the logits.
        eos_token_ids: what ends an output.
        constrained: whether anything but grammars may have hidden tokens.

    Returns:
        [rows, vocab_size] float32: `processed` itself, changed, unless that is `logits`.
    """
    if processed is logits:
        processed = logits.clone()
    bitmask = bitmask.to(logits.device, non_blocking=True)
    apply_token_bitmask(processed, bitmask, rows)
    if constrained:
        _readmit_eos(processed, logits, bitmask, rows, eos_token_ids)
    return processed


def _readmit_eos(
    processed: Tensor, logits: Tensor, bitmask: Tensor, rows: Tensor, eos_token_ids: Sequence[int]
) -> None:
    """Give EOS its logit back where its grammar allows it and no token is left."""
    eos = torch.tensor(list(eos_token_ids), dtype=torch.int64, device=logits.device)
    allowed = ((bitmask[:, eos // WORD_BITS] >> (eos % WORD_BITS).int()) & 1).bool()
    none_left = processed[rows].amax(dim=-1, keepdim=True) == -math.inf
    places = rows[:, None], eos
    processed[places] = torch.where(none_left & allowed, logits[places], processed[places])
