"""Drafts in the making: drawn one per request at a time, from logits over all the vocabulary or a part of it."""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.sample.sampler import SamplingMetadata, process_logits, truncated_logits
from engine.spec_decode.proposer import Proposals, SampledStep
from engine.worker.copies import read_back
from kernels.cpu.draft_chain import NOTHING
from kernels.gumbel_sampling import argmax, gumbel_max
from kernels.philox import Stream


class DraftVocabulary(NamedTuple):
    """The tokens that a drafter can propose."""

    size: int
    """Of the model's vocabulary."""
    target_ids: Tensor | None = None
    """[draft_vocab_size] int64: the model's id of each that can be proposed; None: all can."""

    def widen(self, logits: Tensor) -> Tensor:
        """Logits [rows, draft_vocab_size] as logits [rows, size]: what cannot be proposed is impossible."""
        if self.target_ids is None:
            return logits
        wide = logits.new_full((logits.shape[0], self.size), -torch.inf)
        return wide.index_copy_(1, self.target_ids, logits)


class Drafts:
    """The drafts of a step as they are drawn; each that is drawn here stands in the batch at once, where the next is
    drawn behind it.

    Args:
        step: that they follow.
        vocabulary: that they are drawn in.
        confidence_threshold: nothing is to be drawn behind a draft of a lower probability. The draft itself stays:
            were it dropped, what stands in its place would be likelier to be another token than the model makes it.
    """

    def __init__(self, step: SampledStep, vocabulary: DraftVocabulary, confidence_threshold: float = 0.0) -> None:
        self._step = step
        self._vocabulary = vocabulary
        self._confidence_threshold = confidence_threshold
        self._token_ids: list[list[int]] = [[] for _ in step.inputs.serials]
        self._probs: dict[int, list[Tensor]] = {}

    def take(self, places: NDArray[np.int64], num_wanted: NDArray[np.int64], token_ids: Tensor) -> None:
        """Drafts that were drawn elsewhere.

        Args:
            places: [requests] of these, in the step.
            num_wanted: [requests], drafts that each wants.
            token_ids: [most wanted, requests] int64, `NOTHING` behind the last of each.
        """
        for place, number, column in zip(places.tolist(), num_wanted.tolist(), token_ids.T.tolist(), strict=True):
            self._token_ids[place] = list(takewhile(lambda token_id: token_id != NOTHING, column[:number]))

    def draw(self, places: NDArray[np.int64], number: int, logits: Tensor) -> NDArray[np.bool_]:
        """Draw draft `number` (from 0) of some requests.

        Args:
            places: [requests] of these, in the step.
            number: drafts that they have already.
            logits: [requests, draft_vocab_size] float32.

        Returns:
            [requests]: behind which of them another may be drawn.
        """
        batch, serials = self._step.batch, self._step.inputs.serials
        rows = self._step.inputs.rows[places]
        metadata = batch.sampling_metadata(rows, logits.device, np.full_like(rows, number))
        token_ids, probs, drawn_from = _draw(logits, self._vocabulary, metadata, self._confidence_threshold > 0)
        batch.token_ids[rows, batch.num_tokens[rows] + number] = token_ids
        for index, place in enumerate(places.tolist()):
            if token_ids[index] != NOTHING:
                self._token_ids[place].append(int(token_ids[index]))
                if index in drawn_from:
                    self._probs.setdefault(serials[place], []).append(drawn_from[index])
        drawn: NDArray[np.bool_] = token_ids != NOTHING
        return drawn if probs is None else drawn & (probs >= self._confidence_threshold)

    def proposals(self) -> Proposals:
        """All that were drawn."""
        return Proposals(self._token_ids, {serial: torch.stack(each) for serial, each in self._probs.items()})


def _draw(
    logits: Tensor, vocabulary: DraftVocabulary, metadata: SamplingMetadata, with_probs: bool
) -> tuple[NDArray[np.int64], NDArray[np.float32] | None, dict[int, Tensor]]:
    """One draft per row of logits, drawn as the model's own tokens are.

    Returns:
        The tokens [rows], `NOTHING` where none can be drawn; their probabilities [rows], None if nobody asks; and
        by random row the distribution that its token was drawn from.
    """
    drawn_from: dict[int, Tensor] = {}
    if metadata.takes_largest:
        # Nobody looks at the other tokens, so a part of the vocabulary need not be widened.
        processed, on_device = logits, argmax(logits)
        if vocabulary.target_ids is not None:
            on_device = vocabulary.target_ids[on_device]
    else:
        processed = process_logits(vocabulary.widen(logits), metadata)
        if metadata.all_greedy:
            on_device = argmax(processed)
        else:
            rows = metadata.random_rows
            random = truncated_logits(processed[rows], metadata.random())
            distributions = torch.softmax(random, dim=-1)
            drawn_from = dict(zip(rows.tolist(), distributions, strict=True))
            processed = processed.index_copy(0, rows, random)
            is_random = (metadata.temperature > 0).float()
            on_device = gumbel_max(processed, is_random, metadata.seeds, metadata.output_positions, Stream.DRAFT)
    results = [on_device, processed.amax(dim=-1)]
    if with_probs:
        likelihoods = processed.softmax(dim=-1)
        results.append(
            likelihoods.amax(dim=-1) if metadata.all_greedy else likelihoods.gather(1, on_device[:, None])[:, 0]
        )
    token_ids, largest, *probs = (result.numpy() for result in read_back(*results))
    return np.where(np.isfinite(largest), token_ids, NOTHING), probs[0] if with_probs else None, drawn_from
