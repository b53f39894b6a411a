"""Verifies the drafts of a step: keeps what they were drawn from since they were proposed, and asks the rejection
sampler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.sample.rejection_sampler import DraftTokens, RejectionSampler
from engine.sample.sampler import SamplingMetadata, truncated_logits, why_unsampled
from engine.spec_decode.metadata import SpecDecodeMetadata
from engine.speculation import DraftProbs, LikelyTokens
from engine.trace.recorder import Recorder
from engine.worker.copies import read_back, to_device
from engine.worker.sampled_rows import SampledRows
from kernels.rejection_sampling import Verdicts, recovered_distribution, target_distribution

#: Tokens per draft that `spec.probs` shows at trace level full.
TRACED_TOP_TOKENS = 5


class Verifier:
    """What stands between the proposal of drafts and their verdict."""

    def __init__(self) -> None:
        self.rejection_sampler = RejectionSampler()
        self._draft_probs: dict[int, Tensor] = {}
        """By serial, [drafts, vocab_size]: of drafts that were proposed and have not been verified."""

    def expect(self, serials: Sequence[int], probs: dict[int, Tensor] | None) -> None:
        """Requests come with new drafts, drawn from these distributions; those of all others were certain."""
        for serial in serials:
            self._draft_probs.pop(serial, None)
        self._draft_probs.update(probs or {})

    def forget(self, serial: int) -> None:
        """A request has left, and its drafts with it."""
        self._draft_probs.pop(serial, None)

    def verify(
        self,
        processed: Tensor,
        metadata: SamplingMetadata,
        drafts: SpecDecodeMetadata,
        serials: list[int],
        trace: Recorder | None,
    ) -> SampledRows:
        """Accept drafts from left to right, and add a token of the model's own to each request.

        A row that no token can be drawn from ends its request's output: before it, if tokens come before it, which
        leaves the error to the next step, just as without drafts.

        Args:
            processed: [drafts + requests, vocab_size] float32, as `process_logits` returns them.
            metadata: parameters of the same rows.
            drafts: which row is for what.
            serials: of the sampled requests.
            trace: who wants to know how it went; None: nobody.
        """
        device = processed.device
        tokens = DraftTokens(
            token_ids=to_device(drafts.draft_token_ids, device),
            start_loc=to_device(drafts.start_loc, device),
            first_rows=to_device(drafts.first_rows[:-1], device),
            most=int(drafts.num_drafts.max()),
            probs=self._probs(drafts, serials, processed),
        )
        verdicts = self.rejection_sampler(processed, metadata, tokens)
        # Who looked for it did so where all requests are greedy, and nothing has been divided by a temperature.
        of_rows = processed.amax(dim=-1) if verdicts.largest is None else verdicts.largest
        put_out, accepted, largest = read_back(verdicts.token_ids, verdicts.num_accepted, of_rows)
        unsampled = why_unsampled(largest)
        token_ids = [row[: 1 + count] for row, count in zip(put_out.tolist(), accepted.tolist(), strict=True)]
        failed: dict[int, str] = {}
        for row in sorted(unsampled, reverse=True):
            request, place = int(drafts.request[row]), int(drafts.num_before[row])
            token_ids[request] = token_ids[request][:place]
            if place == 0:
                failed[request] = unsampled[row]
        probs = {}
        if trace is not None:
            probs = _told(processed, metadata, drafts, serials, tokens, verdicts, unsampled, trace.records("full"))
        return SampledRows(token_ids, failed, drafts.first_rows[:-1].tolist(), probs)

    def _probs(self, drafts: SpecDecodeMetadata, serials: list[int], like: Tensor) -> Tensor | None:
        """[drafts, vocab_size], or None if all drafts were certain. The scheduler may have cut some off."""
        if not any(serial in self._draft_probs for serial in serials):
            return None
        parts = []
        for index, serial in enumerate(serials):
            start, end = drafts.start_loc[index : index + 2]
            drawn_from = self._draft_probs.get(serial)
            if drawn_from is None:
                certain = torch.from_numpy(drafts.draft_token_ids[start:end]).to(like.device)
                drawn_from = F.one_hot(certain, like.shape[-1]).to(like.dtype)
            parts.append(drawn_from[: end - start])
        return torch.cat(parts)


def _told(
    processed: Tensor,
    metadata: SamplingMetadata,
    drafts: SpecDecodeMetadata,
    serials: list[int],
    tokens: DraftTokens,
    verdicts: Verdicts,
    unsampled: dict[int, str],
    full: bool,
) -> dict[int, DraftProbs]:
    """Why drafts were accepted or not, by serial."""
    target, draft, uniform = (
        tensor.nan_to_num(0.0).tolist()
        for tensor in read_back(verdicts.target_probs, verdicts.draft_probs, verdicts.uniforms)
    )
    likely = _likely(processed, metadata, drafts, tokens) if full else []
    told = {}
    for index, serial in enumerate(serials):
        start, end = drafts.start_loc[index : index + 2].tolist()
        if start < end:
            rows = range(start + index, end + index)
            told[serial] = DraftProbs(
                # Where no token can be drawn, no draft is one.
                target=[0.0 if row in unsampled else p for row, p in zip(rows, target[start:end], strict=True)],
                draft=draft[start:end],
                uniform=uniform[start:end],
                likely=likely[start:end],
            )
    return told


def _likely(
    processed: Tensor, metadata: SamplingMetadata, drafts: SpecDecodeMetadata, tokens: DraftTokens
) -> list[LikelyTokens]:
    """The most likely tokens at the place of every draft."""
    rows = to_device(np.flatnonzero(drafts.num_before < drafts.num_drafts[drafts.request]), processed.device)
    greedy = torch.ones(len(processed), dtype=torch.bool, device=processed.device)
    if not metadata.all_greedy:
        greedy[metadata.random_rows] = False
        random = metadata.random_rows
        processed = processed.index_copy(0, random, truncated_logits(processed[random], metadata.random()))
    target = target_distribution(processed[rows], greedy[rows]).nan_to_num(0.0)
    draft = F.one_hot(tokens.token_ids, target.shape[-1]).to(target.dtype) if tokens.probs is None else tokens.probs
    recovered = recovered_distribution(target, draft, tokens.token_ids)
    top = target.topk(min(TRACED_TOP_TOKENS, target.shape[-1]), dim=-1).indices
    columns = (top, *(probs.gather(-1, top) for probs in (target, draft, recovered)))
    return [
        LikelyTokens(token_ids=ids, target_probs=p, draft_probs=q, recovered_probs=r)
        for ids, p, q, r in zip(*(column.tolist() for column in columns), strict=True)
    ]
