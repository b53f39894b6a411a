"""`MedusaHead`: several guesses out of one state of the target, none of which sees another (Cai et al. 2024).

Of the state h at position i, which the target itself turns into token i + 1, the j-th block makes one that is turned
into token i + 1 + j::

    h ─┬─► h + silu(W₁h + b₁) ─┐                        ┌─► t(i+2)?
       ├─► h + silu(W₂h + b₂) ─┼─► one output head ─────┼─► t(i+3)?
       └─► h + silu(W₃h + b₃) ─┘                        └─► t(i+4)?

All blocks share one output head, so that its rows, most of the weights, are read once for all drafts of a step.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.architecture import Architecture
from engine.models.draft_head import (
    TARGET_IDS,
    Product,
    draft_vocab_size,
    empty_target_ids,
    product,
    read_head_config,
    require_target_ids,
)
from engine.models.loading import load_tensors

MEDUSA_HEAD = "MedusaHead"
#: Drafts a step could bring along at most; each needs a block of its own.
MOST_HEADS = 16


class MedusaHead:
    """Medusa's heads.

    Args:
        num_heads: drafts after each state.
        blocks: [n, hidden_size] → [n, num_heads × hidden_size], W and b of all blocks.
        lm_head: [n, hidden_size] → [n, draft_vocab_size].
        weight_bytes: of all of them.
        target_ids: [draft_vocab_size] int64, ascending: the target's id of each token it drafts; None: all of them.
    """

    def __init__(
        self, num_heads: int, blocks: Product, lm_head: Product, weight_bytes: int, target_ids: Tensor | None
    ) -> None:
        self.num_heads = num_heads
        self.target_ids = target_ids
        self._blocks, self._lm_head = blocks, lm_head
        self._weight_bytes = weight_bytes

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """States of the target after its last norm [n, hidden_size] → [num_heads, n, draft_vocab_size] float32."""
        added = F.silu(self._blocks(hidden)).unflatten(-1, (self.num_heads, -1))
        states = (hidden[:, None] + added).transpose(0, 1)
        return self._lm_head(states.flatten(0, 1)).float().unflatten(0, states.shape[:2])

    def weight_bytes(self) -> int:
        """Bytes that the drafts of a step read."""
        return self._weight_bytes


def load_medusa_head(
    folder: Path, target: Architecture, dtype: torch.dtype, device: torch.device, *, packed: bool = False
) -> MedusaHead:
    """Load the heads.

    Args:
        folder: of the heads.
        target: the model they are to draft for.
        dtype: of the weights.
        device: where they will run.
        packed: run by the CPU's compiled kernels, in float32.

    Raises:
        ModelError: no Medusa heads, damaged ones, or those of another target.
    """
    config = read_head_config(folder, MEDUSA_HEAD, target)
    num_heads, hidden_size = config.integer("num_heads", high=MOST_HEADS), target.hidden_size
    target_ids = empty_target_ids(config, device)
    weight = torch.empty(num_heads, hidden_size, hidden_size, dtype=dtype, device=device)
    bias = torch.empty(num_heads, hidden_size, dtype=dtype, device=device)
    lm_head = torch.empty(draft_vocab_size(config), hidden_size, dtype=dtype, device=device)
    tensors = {"blocks.weight": weight, "blocks.bias": bias, "lm_head.weight": lm_head}
    load_tensors(tensors if target_ids is None else {**tensors, TARGET_IDS: target_ids}, folder, MEDUSA_HEAD)
    require_target_ids(target_ids, target.vocab_size, folder)
    return MedusaHead(
        num_heads,
        product(weight.flatten(0, 1), bias.flatten(), packed=packed),
        product(lm_head, None, packed=packed),
        sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
        target_ids,
    )
