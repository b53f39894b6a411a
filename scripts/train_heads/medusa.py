"""Medusa heads in training: each learns what the target says some tokens further on."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from scripts.train_heads.examples import Batch
from scripts.train_heads.head import DraftVocabulary

#: The further away, the less can be known: each weighs less than the one before, as in the paper.
_DECAY = 0.8


class MedusaInTraining(nn.Module):
    """Medusa's blocks, begun as if each said again what the target says, and their output head, begun as its.

    Args:
        target: float32; its word is used, and not trained.
        target_ids: [draft_vocab_size] int64, ascending.
        num_heads: drafts after each state.
    """

    def __init__(self, target: LlamaForCausalLM, target_ids: Tensor, num_heads: int) -> None:
        super().__init__()
        hidden_size = target.config.hidden_size
        self.num_heads = num_heads
        self.vocabulary = DraftVocabulary(target_ids, target.lm_head.weight.detach())
        self.weight = nn.Parameter(torch.zeros(num_heads, hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.zeros(num_heads, hidden_size))
        self.lm_head = nn.Parameter(self.vocabulary.output_head.clone())

    def loss(self, batch: Batch) -> Tensor:
        """Of the words, over all heads."""
        total = torch.zeros(())
        for number in range(self.num_heads):
            states, wanted = self._rows(batch, number)
            total = total + _DECAY**number * self.vocabulary.cross_entropy(self._logits(states, number), wanted)
        return total

    @torch.no_grad()
    def hits(self, batch: Batch) -> list[Tensor]:
        """See `HeadInTraining`."""
        drafted = _drafted(batch, self.num_heads - 1)
        hits = []
        for number in range(self.num_heads):
            ahead = batch.token_ids.roll(-2 - number, dims=1)
            hits.append(self.vocabulary.hit(self._logits(batch.states[drafted], number), ahead[drafted]))
        return hits

    def _rows(self, batch: Batch, number: int) -> tuple[Tensor, Tensor]:
        """[rows, hidden_size]: states that head `number` starts from, and those in which the target says its token."""
        drafted = _drafted(batch, number)
        return batch.states[drafted], batch.states.roll(-1 - number, dims=1)[drafted]

    def _logits(self, states: Tensor, number: int) -> Tensor:
        return F.linear(states + F.silu(F.linear(states, self.weight[number], self.bias[number])), self.lm_head)

    def tensors(self) -> dict[str, Tensor]:
        """See `HeadInTraining`."""
        return {"blocks.weight": self.weight, "blocks.bias": self.bias, "lm_head.weight": self.lm_head}

    def config(self) -> dict[str, Any]:
        """See `HeadInTraining`."""
        return {"hidden_size": self.lm_head.shape[1], "num_heads": self.num_heads}


def _drafted(batch: Batch, number: int) -> Tensor:
    """[texts, length] bool: places i from which token i + 2 + number is drafted, i + 1 being of the answer as well."""
    answers = batch.answers
    begun = answers.roll(-1, dims=1) & answers.roll(-2 - number, dims=1)
    begun[:, max(0, answers.shape[1] - 2 - number) :] = False
    return begun
