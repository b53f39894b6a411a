"""Log probabilities for those who asked: of the tokens that stand in a text, and of the most likely ones there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.logprobs import TopLogprobs


def top_logprobs(logits: Tensor, token_ids: Tensor, num_top: Sequence[int]) -> list[TopLogprobs]:
    """Per row the log probability of a given token and of the most likely ones.

    Args:
        logits: [rows, vocab_size] float32, as the model gave them.
        token_ids: [rows] int64, the token that stands at each row's place.
        num_top: per row how many of the most likely tokens to tell.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    given = logprobs.gather(-1, token_ids[:, None])
    # Of tokens that are equally likely each has the rank of the last, as in vLLM.
    ranks = (logprobs >= given).sum(dim=-1).tolist()
    top = logprobs.topk(min(max(num_top), logits.shape[-1]), dim=-1)
    values = torch.cat((given, top.values), dim=-1).tolist()
    ids = torch.cat((token_ids[:, None], top.indices), dim=-1).tolist()
    return [
        TopLogprobs(token_ids=row_ids[: 1 + k], logprobs=row_values[: 1 + k], rank=rank)
        for row_ids, row_values, k, rank in zip(ids, values, num_top, ranks, strict=True)
    ]
