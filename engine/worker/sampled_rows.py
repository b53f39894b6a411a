"""The tokens that a step's requests got, before they are told to the core and to the trace."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.sample.sampler import SamplingMetadata, sample, truncated_logits, why_unsampled
from engine.speculation import DraftProbs
from engine.trace.events import ForwardLogits
from engine.worker.copies import read_back

#: Tokens per sampled row that `forward.logits` shows.
TRACED_TOP_TOKENS = 10

_LARGEST = torch.finfo(torch.float32).max


class SampledRows(NamedTuple):
    """What came of the logits of a step, per sampled request."""

    token_ids: list[list[int]]
    """The new tokens: none for a request that failed; with drafts, those accepted and one more."""
    failed: dict[int, str]
    """By request, why no token could be sampled."""
    first_rows: list[int]
    """The row of the logits that its first token is from; the next tokens are from the next rows."""
    probs: dict[int, DraftProbs]
    """By serial, how drafts were verified; empty if nobody wants to know."""

    def rows_of(self, request: int) -> range:
        """The rows of the logits that the new tokens of a request are from."""
        first = self.first_rows[request]
        return range(first, first + len(self.token_ids[request]))


def sample_rows(processed: Tensor, metadata: SamplingMetadata) -> tuple[SampledRows, NDArray[np.int64]]:
    """One token for each row of the logits, [requests, vocab_size]; also all in one array, where the tokens of requests
    that failed mean nothing."""
    on_device = sample(processed, metadata)
    # NaN is the maximum of its row, so that one number per row says whether it could be sampled.
    largest = processed.gather(-1, on_device[:, None])[:, 0] if metadata.all_greedy else processed.amax(dim=-1)
    tokens, largest = read_back(on_device, largest)
    failed = why_unsampled(largest)
    token_ids = [[] if index in failed else [token] for index, token in enumerate(tokens.tolist())]
    return SampledRows(token_ids, failed, list(range(len(token_ids))), {}), tokens.numpy()


def logits_event(
    serials: list[int], logits: Tensor, processed: Tensor, metadata: SamplingMetadata, sampled: SampledRows
) -> ForwardLogits:
    """The rows that tokens are from; those that failed have nothing to show that JSON could hold."""
    top = logits.topk(min(TRACED_TOP_TOKENS, logits.shape[-1]), dim=-1)
    probs = torch.softmax(processed, dim=-1)
    if not metadata.all_greedy:
        rows = metadata.random_rows
        probs[rows] = torch.softmax(truncated_logits(processed[rows], metadata.random()), dim=-1)
    # A model may rule a token out by itself; JSON has no infinity.
    top_logits = top.values.clamp(-_LARGEST, _LARGEST).nan_to_num(-_LARGEST).tolist()
    top_ids, top_probs = top.indices.tolist(), probs.gather(-1, top.indices).tolist()
    requests = range(len(serials))
    shown = [row for request in requests for row in sampled.rows_of(request)]
    drawn = [token_id for token_ids in sampled.token_ids for token_id in token_ids]
    for row, token_id in zip(shown, drawn, strict=True):
        # A mask or chance may choose what the model thought unlikely: it takes the last place of the list.
        if token_id not in top_ids[row]:
            top_ids[row][-1], top_probs[row][-1] = token_id, float(probs[row, token_id])
            top_logits[row][-1] = float(logits[row, token_id].clamp(-_LARGEST, _LARGEST))
    return ForwardLogits(
        requests=[serials[request] for request in requests for _ in sampled.token_ids[request]],
        top_token_ids=[top_ids[row] for row in shown],
        top_logits=[top_logits[row] for row in shown],
        top_probs=[top_probs[row] for row in shown],
        sampled_token_ids=drawn,
    )
