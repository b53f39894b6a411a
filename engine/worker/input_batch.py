"""The persistent batch: what is known of every running request, kept in arrays between steps.

A step changes little: a token more here, a block more there, a request come or gone. So nothing is rebuilt; a request
keeps its row from its entry to its end, and a new one takes a row that has become free.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from engine.core.messages import NewRequestData, ScheduledRow
from engine.sample.sampler import SamplingMetadata
from engine.worker.block_table import BlockTable


class InputBatch:
    """Tokens, block tables and sampling parameters of the running requests, by row.

    Args:
        max_num_seqs: rows.
        max_model_len: most tokens of a request.
        block_size: tokens of a KV cache block.
        vocab_size: tokens of the vocabulary.
        num_groups: KV cache groups, each with a block table of its own.
    """

    def __init__(
        self, max_num_seqs: int, max_model_len: int, block_size: int, vocab_size: int, num_groups: int = 1
    ) -> None:
        self.vocab_size = vocab_size
        self.block_tables = [BlockTable(max_num_seqs, max_model_len, block_size) for _ in range(num_groups)]
        """One per KV cache group."""
        self.token_ids: NDArray[np.int32] = np.zeros((max_num_seqs, max_model_len), dtype=np.int32)
        self.num_tokens: NDArray[np.int64] = np.zeros(max_num_seqs, dtype=np.int64)
        self.num_prompt_tokens: NDArray[np.int64] = np.zeros(max_num_seqs, dtype=np.int64)
        self._temperature: NDArray[np.float32] = np.zeros(max_num_seqs, dtype=np.float32)
        self._top_k: NDArray[np.int64] = np.zeros(max_num_seqs, dtype=np.int64)
        self._top_p: NDArray[np.float32] = np.ones(max_num_seqs, dtype=np.float32)
        self._min_p: NDArray[np.float32] = np.zeros(max_num_seqs, dtype=np.float32)
        self._seeds: NDArray[np.uint64] = np.zeros(max_num_seqs, dtype=np.uint64)
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

    def update(self, scheduled: ScheduledRow) -> None:
        """Take in what a step says of a request: all of it if it is new or resumed, else its added blocks."""
        if scheduled.new is None:
            for table, block_ids in zip(self.block_tables, scheduled.block_ids, strict=True):
                table.append(self._row_of[scheduled.serial], block_ids)
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
        self._temperature[row] = 0.0 if params.greedy else params.temperature
        self._top_k[row] = params.top_k if params.top_k < self.vocab_size else 0
        self._top_p[row] = params.top_p
        self._min_p[row] = params.min_p
        self._seeds[row] = params.seed or 0

    def append_tokens(self, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Add one sampled token to each of some rows. A row that is full has just ended, and needs it no more."""
        positions = self.num_tokens[rows]
        fits = positions < self.token_ids.shape[1]
        self.token_ids[rows[fits], positions[fits]] = token_ids[fits]
        self.num_tokens[rows] = positions + fits

    def sampling_metadata(self, rows: NDArray[np.int64], device: torch.device) -> SamplingMetadata:
        """The sampling parameters of some rows, in their order."""
        top_k, top_p, min_p = self._top_k[rows], self._top_p[rows], self._min_p[rows]
        temperature = self._temperature[rows]
        random = temperature > 0.0
        return SamplingMetadata(
            temperature=torch.from_numpy(temperature).to(device),
            top_k=torch.from_numpy(top_k).to(device),
            top_p=torch.from_numpy(top_p).to(device),
            min_p=torch.from_numpy(min_p).to(device),
            seeds=torch.from_numpy(self._seeds[rows].view(np.int64)).to(device),
            output_positions=torch.from_numpy(self.num_tokens[rows] - self.num_prompt_tokens[rows]).to(device),
            random_rows=torch.from_numpy(np.flatnonzero(random)).to(device),
            any_min_p=bool((random & (min_p > 0.0)).any()),
            any_top_k_top_p=bool((random & ((top_k > 0) | (top_p < 1.0))).any()),
        )
