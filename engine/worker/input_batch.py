"""The persistent batch: what is known of every running request, kept in arrays between steps.

A step changes little: a token more here, a block more there, a request come or gone. So nothing is rebuilt; a request
keeps its row from its entry to its end, and a new one takes a row that has become free.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.core.messages import NewRequestData, ScheduledRow
from engine.sample.logits_processors import ConstrainedRow, LogitsProcessor, RequestConstraints
from engine.sample.penalties import Penalties, count_tokens
from engine.sample.sampler import SamplingMetadata
from engine.worker.block_table import BlockTable
from engine.worker.copies import to_device
from engine.worker.prompt_logprobs import PromptLogprobs

#: Told from 0, which asks for the sampled token's alone.
NO_LOGPROBS = -1


class InputBatch:
    """Tokens, block tables and sampling parameters of the running requests, by row.

    Args:
        max_num_seqs: rows.
        max_model_len: most tokens of a request.
        block_size: tokens of a KV cache block.
        vocab_size: tokens of the vocabulary.
        eos_token_ids: the model's end-of-sequence tokens.
        device: where logits are.
        logits_processors: custom ones.
        num_groups: KV cache groups, each with a block table of its own.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        vocab_size: int,
        eos_token_ids: Sequence[int] = (),
        device: torch.device | None = None,
        logits_processors: Sequence[LogitsProcessor] = (),
        num_groups: int = 1,
    ) -> None:
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self._device = device or torch.device("cpu")
        self._logits_processors = logits_processors
        self.block_tables = [BlockTable(max_num_seqs, max_model_len, block_size) for _ in range(num_groups)]
        """One per KV cache group."""
        self.token_ids: NDArray[np.int32] = np.zeros((max_num_seqs, max_model_len), dtype=np.int32)
        self.num_tokens: NDArray[np.int64] = np.zeros(max_num_seqs, dtype=np.int64)
        self.num_prompt_tokens: NDArray[np.int64] = np.zeros(max_num_seqs, dtype=np.int64)
        self.max_num_tokens: NDArray[np.int64] = np.zeros(max_num_seqs, dtype=np.int64)
        """Most tokens that a request may come to have, prompt and output."""
        self._temperature: NDArray[np.float32] = np.zeros(max_num_seqs, dtype=np.float32)
        self._top_k: NDArray[np.int64] = np.zeros(max_num_seqs, dtype=np.int64)
        self._top_p: NDArray[np.float32] = np.ones(max_num_seqs, dtype=np.float32)
        self._min_p: NDArray[np.float32] = np.zeros(max_num_seqs, dtype=np.float32)
        self._seeds: NDArray[np.uint64] = np.zeros(max_num_seqs, dtype=np.uint64)
        self._presence: NDArray[np.float32] = np.zeros(max_num_seqs, dtype=np.float32)
        self._frequency: NDArray[np.float32] = np.zeros(max_num_seqs, dtype=np.float32)
        self._repetition: NDArray[np.float32] = np.ones(max_num_seqs, dtype=np.float32)
        self._penalised: NDArray[np.bool_] = np.zeros(max_num_seqs, dtype=np.bool_)
        self.num_logprobs: NDArray[np.int64] = np.full(max_num_seqs, NO_LOGPROBS, dtype=np.int64)
        """Most likely tokens to tell per sampled one; `NO_LOGPROBS` where none are asked for."""
        # By row, what only few requests have.
        self._constraints: dict[int, RequestConstraints] = {}
        self.prompt_logprobs: dict[int, PromptLogprobs] = {}
        self.prompt_embeds: dict[int, Tensor] = {}
        """[num_prompt_tokens, hidden_size] of prompts given as embeddings; their token ids mean nothing."""
        self._row_of: dict[int, int] = {}
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._row_of)

    def row_of(self, serial: int) -> int:
        """The row of a running request."""
        return self._row_of[serial]

    def release(self, serial: int) -> None:
        """Free the row of a request. One that was planned but never reached the worker has none."""
        row = self._row_of.pop(serial, None)
        if row is not None:
            self._free_rows.append(row)
            for by_row in (self._constraints, self.prompt_logprobs, self.prompt_embeds):
                by_row.pop(row, None)

    def update(self, scheduled: ScheduledRow) -> None:
        """Take in what a step says of a request: all of it if it is new or resumed, else its added blocks and drafts.

        Drafts stand behind the request's tokens, but are not counted among them.
        """
        if scheduled.new is None:
            row = self._row_of[scheduled.serial]
            for table, block_ids in zip(self.block_tables, scheduled.block_ids, strict=True):
                table.append(row, block_ids)
            if scheduled.draft_token_ids:
                first = self.num_tokens[row]
                self.token_ids[row, first : first + len(scheduled.draft_token_ids)] = scheduled.draft_token_ids
        else:
            self._enter(scheduled.serial, scheduled.new, scheduled.block_ids)

    def _enter(self, serial: int, new: NewRequestData, block_ids: tuple[list[int], ...]) -> None:
        params = new.sampling_params
        if not params.greedy and params.seed is None:
            raise ValueError(f"request {serial} is sampled at random but was given no seed.")
        self.release(serial)
        row = self._row_of[serial] = self._free_rows.pop()
        for table, of_group in zip(self.block_tables, block_ids, strict=True):
            table.replace(row, of_group)
        self.token_ids[row, : len(new.token_ids)] = new.token_ids
        self.num_tokens[row] = len(new.token_ids)
        self.num_prompt_tokens[row] = new.num_prompt_tokens
        longest = self.token_ids.shape[1]
        self.max_num_tokens[row] = min(longest, new.num_prompt_tokens + (params.max_tokens or longest))
        self._temperature[row] = 0.0 if params.greedy else _float32(params.temperature)
        self._top_k[row] = params.top_k if params.top_k < self.vocab_size else 0
        self._top_p[row] = params.top_p
        self._min_p[row] = params.min_p
        self._seeds[row] = params.seed or 0
        self._presence[row] = params.presence_penalty
        self._frequency[row] = params.frequency_penalty
        self._repetition[row] = _float32(params.repetition_penalty)
        self._penalised[row] = params.has_penalties
        self.num_logprobs[row] = self._num_top(params.logprobs)
        self._enter_extras(row, new)

    def _enter_extras(self, row: int, new: NewRequestData) -> None:
        """What only few requests have."""
        params = new.sampling_params
        custom = [made for each in self._logits_processors if (made := each.new_req_logits_processor(params))]
        if custom or RequestConstraints.needed(params):
            self._constraints[row] = RequestConstraints(
                params, self.eos_token_ids, self.vocab_size, custom, self._device
            )
        # With output there, they have been told: they came with its first token.
        if params.prompt_logprobs is not None and len(new.token_ids) == new.num_prompt_tokens:
            self.prompt_logprobs[row] = PromptLogprobs(self._num_top(params.prompt_logprobs))
        if new.prompt_embeds is not None:
            self.prompt_embeds[row] = new.prompt_embeds

    def _num_top(self, asked: int | None) -> int:
        if asked is None:
            return NO_LOGPROBS
        return self.vocab_size if asked == -1 else asked

    def prompt_token_ids(self, row: int) -> NDArray[np.int32]:
        """The prompt of a request, as far as it is tokens."""
        return self.token_ids[row, : 0 if row in self.prompt_embeds else self.num_prompt_tokens[row]]

    def output_token_ids(self, row: int, num_drafts: int = 0) -> NDArray[np.int32]:
        """What a request has put out, and so many of its drafts behind it."""
        return self.token_ids[row, self.num_prompt_tokens[row] : self.num_tokens[row] + num_drafts]

    def append_tokens(self, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Add one sampled token to each of some rows. A row that is full has just ended, and needs it no more."""
        positions = self.num_tokens[rows]
        fits = positions < self.token_ids.shape[1]
        self.token_ids[rows[fits], positions[fits]] = token_ids[fits]
        self.num_tokens[rows] = positions + fits

    def extend_tokens(self, row: int, token_ids: list[int]) -> None:
        """Add several tokens to one row, as far as it has room."""
        first = self.num_tokens[row]
        self.num_tokens[row] = min(first + len(token_ids), self.token_ids.shape[1])
        self.token_ids[row, first : self.num_tokens[row]] = token_ids[: self.num_tokens[row] - first]

    def take_largest(self, rows: NDArray[np.int64]) -> bool:
        """Whether some rows are sure to take the largest of their logits as they are."""
        return not (self._constraints or self._penalised[rows].any() or (self._temperature[rows] > 0.0).any())

    def sampling_metadata(
        self, rows: NDArray[np.int64], device: torch.device, num_drafts: NDArray[np.int64] | None = None
    ) -> SamplingMetadata:
        """The sampling parameters of some rows, in their order.

        Args:
            rows: [n], rows of the batch; a row with drafts once for each place where a token may come to stand.
            device: where the logits are.
            num_drafts: [n], drafts of the row that stand before that place; None: none.
        """
        if self.take_largest(rows):
            return SamplingMetadata.greedy()
        temperature = self._temperature[rows]
        random = temperature > 0.0
        penalised = self._penalised[rows].any()
        num_drafts = np.zeros_like(rows) if num_drafts is None else num_drafts
        top_k, top_p, min_p = self._top_k[rows], self._top_p[rows], self._min_p[rows]
        return SamplingMetadata(
            temperature=to_device(temperature, device),
            top_k=to_device(top_k, device),
            top_p=to_device(top_p, device),
            min_p=to_device(min_p, device),
            seeds=to_device(self._seeds[rows].view(np.int64), device),
            output_positions=to_device(self.num_tokens[rows] + num_drafts - self.num_prompt_tokens[rows], device),
            random_rows=to_device(np.flatnonzero(random), device),
            any_min_p=bool((random & (min_p > 0.0)).any()),
            any_top_k_top_p=bool((random & ((top_k > 0) | (top_p < 1.0))).any()),
            constrained=self._constrained(rows, num_drafts) if self._constraints else (),
            penalties=self._penalties(rows, num_drafts, device) if penalised else None,
        )

    def _constrained(self, rows: NDArray[np.int64], num_drafts: NDArray[np.int64]) -> list[ConstrainedRow]:
        places = enumerate(zip(rows.tolist(), num_drafts.tolist(), strict=True))
        return [
            ConstrainedRow(at, self._constraints[row], self.prompt_token_ids(row), self.output_token_ids(row, drafts))
            for at, (row, drafts) in places
            if row in self._constraints
        ]

    def _penalties(self, rows: NDArray[np.int64], num_drafts: NDArray[np.int64], device: torch.device) -> Penalties:
        places = np.flatnonzero(self._penalised[rows])
        rows, num_drafts = rows[places], num_drafts[places]
        prompts = [self.prompt_token_ids(row) for row in rows.tolist()]
        outputs = [
            self.output_token_ids(row, drafts) for row, drafts in zip(rows.tolist(), num_drafts.tolist(), strict=True)
        ]
        token_ids, prompt_counts, output_counts = count_tokens(prompts, outputs, device)
        return Penalties(
            rows=to_device(places, device),
            presence=to_device(self._presence[rows], device),
            frequency=to_device(self._frequency[rows], device),
            repetition=to_device(self._repetition[rows], device),
            token_ids=token_ids,
            prompt_counts=prompt_counts,
            output_counts=output_counts,
        )


def _float32(value: float) -> float:
    """A positive number as float32 can have it: neither 0 nor infinite."""
    limits = np.finfo(np.float32)
    return min(max(value, float(limits.tiny)), float(limits.max))
