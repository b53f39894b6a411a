"""What a head in training is, and what both kinds need: the target's own word on a draft vocabulary."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.train_heads.examples import Batch


class HeadInTraining(Protocol):
    """An EAGLE or Medusa head that learns."""

    def loss(self, batch: Batch) -> Tensor:
        """What is made smaller, a scalar."""

    def hits(self, batch: Batch) -> list[Tensor]:
        """By draft position, [positions] bool: whether a draft there is the text's token, those before it being so.

        Row i of all of them belongs to the same first draft.
        """

    def tensors(self) -> dict[str, Tensor]:
        """The weights by their names in a head's file."""

    def config(self) -> dict[str, Any]:
        """What a head's `config.json` says of its shape."""

    def parameters(self) -> Any:
        """Of the module."""


class DraftVocabulary(nn.Module):
    """The part of the vocabulary that a head drafts in.

    Args:
        target_ids: [size] int64, ascending.
        output_head: [vocab_size, hidden_size] float32, the target's.
    """

    def __init__(self, target_ids: Tensor, output_head: Tensor) -> None:
        super().__init__()
        self.size, self.vocab_size = len(target_ids), len(output_head)
        self.target_ids: Tensor
        self.places: Tensor
        self.output_head: Tensor
        self.register_buffer("target_ids", target_ids)
        self.register_buffer("output_head", output_head[target_ids])
        # A token outside has a place that no draft has, so that it is never hit.
        places = torch.full((self.vocab_size,), -1)
        places[target_ids] = torch.arange(self.size)
        self.register_buffer("places", places)

    @property
    def is_whole(self) -> bool:
        return self.size == self.vocab_size

    def cross_entropy(self, logits: Tensor, states: Tensor) -> Tensor:
        """Mean over rows of the cross entropy with what the target says of those tokens.

        Args:
            logits: [rows, size], the head's.
            states: [rows, hidden_size], the target's, in which it chooses the token.
        """
        with torch.no_grad():
            wanted = F.linear(states, self.output_head).softmax(-1)
        return F.cross_entropy(logits, wanted)

    def hit(self, logits: Tensor, token_ids: Tensor) -> Tensor:
        """[rows] bool: whether the likeliest of [rows, size] is that token of the target's vocabulary."""
        return logits.argmax(-1) == self.places[token_ids]
