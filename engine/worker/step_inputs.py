"""What one forward pass takes: the tensors of a step's super-sequence, computed from the plan and the batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.backend import AttentionInputs
from engine.core.messages import ScheduledRow
from engine.trace.events import ForwardInputs
from engine.worker.block_table import BlockTable
from engine.worker.input_batch import InputBatch


class StepInputs(NamedTuple):
    """A super-sequence: the scheduled tokens of all requests, one request after another, in the plan's order.

    ::

        plan             r0: tokens 5, 6, 7     r1: token 9     r2: tokens 0 … 3 of 12
        positions        5 6 7                  9               0 1 2 3
        query_start_loc  0                      3               4                        8
        seq_lens         8                      10              4
        logits_indices       2                  3               (its prompt goes on: no logits)

    Drafts are scheduled tokens like any other, the last of a request's; each has logits, as has the token before them.
    """

    serials: list[int]
    rows: NDArray[np.int64]
    """[num_requests]: rows of the batch."""
    input_ids: Tensor
    """[num_tokens] int64, on the CPU, as are the next five."""
    positions: Tensor
    slot_mappings: tuple[Tensor, ...]
    """Per KV cache group."""
    query_start_loc: Tensor
    """[num_requests + 1] int64."""
    seq_lens: Tensor
    """[num_requests] int64: tokens with KV in the cache after this step."""
    block_tables: tuple[Tensor, ...]
    """Per KV cache group: [num_requests, max_blocks] int32. What a sliding window has passed is still named in it."""
    sampled: NDArray[np.int64]
    """[sampled requests]: which of the requests have reached the end of their tokens and get a new one."""
    num_drafts: NDArray[np.int64]
    """[sampled requests]: drafts at the end of their scheduled tokens."""

    @property
    def logits_indices(self) -> NDArray[np.int64]:
        """Places in the super-sequence whose hidden states become logits, [sampled requests + drafts]."""
        last: NDArray[np.int64] = self.query_start_loc.numpy()[1:][self.sampled] - 1
        if not self.num_drafts.any():
            return last
        rows = self.num_drafts + 1
        return (last + 1 - rows.cumsum()).repeat(rows) + np.arange(rows.sum())

    @property
    def groups(self) -> tuple[AttentionInputs, ...]:
        """What attention is planned from, per KV cache group."""
        return tuple(
            AttentionInputs(tables, self.query_start_loc, self.seq_lens, slots)
            for tables, slots in zip(self.block_tables, self.slot_mappings, strict=True)
        )

    def event(self, batch: InputBatch) -> ForwardInputs:
        """The same facts for the trace."""
        return ForwardInputs(
            requests=self.serials,
            input_ids=self.input_ids.tolist(),
            positions=self.positions.tolist(),
            slot_mapping=self.slot_mappings[0].tolist(),
            query_start_loc=self.query_start_loc.tolist(),
            seq_lens=self.seq_lens.tolist(),
            block_tables=self._blocks(batch.block_tables[0]),
            logits_indices=self.logits_indices.tolist(),
            more_slot_mappings=[slots.tolist() for slots in self.slot_mappings[1:]],
            more_block_tables=[self._blocks(table) for table in batch.block_tables[1:]],
        )

    def _blocks(self, table: BlockTable) -> list[list[int]]:
        return [table.blocks_of(row) for row in self.rows.tolist()]


def prepare_inputs(batch: InputBatch, scheduled: list[ScheduledRow]) -> StepInputs:
    """Flatten the plan of a step; the batch has taken its rows in already."""
    num_computed = np.array([row.num_computed_tokens for row in scheduled], dtype=np.int64)
    num_scheduled = np.array([row.num_scheduled_tokens for row in scheduled], dtype=np.int64)
    num_drafts = np.array([len(row.draft_token_ids) for row in scheduled], dtype=np.int64)
    inputs = flatten(batch, [row.serial for row in scheduled], num_computed, num_scheduled)
    sampled = np.flatnonzero(inputs.seq_lens.numpy() - num_drafts == batch.num_tokens[inputs.rows])
    return inputs._replace(sampled=sampled, num_drafts=num_drafts[sampled])


def flatten(
    batch: InputBatch,
    serials: list[int],
    num_computed: NDArray[np.int64],
    num_scheduled: NDArray[np.int64],
    *,
    ahead: int = 0,
) -> StepInputs:
    """The super-sequence of some requests, [num_requests]: of each the next tokens after the computed ones.

    The last token of each is sampled from. The ids are those of the tokens so many places `ahead`.
    """
    rows = np.array([batch.row_of(serial) for serial in serials], dtype=np.int64)
    seq_lens = num_computed + num_scheduled
    if (num_scheduled == 1).all():
        query_start_loc, token_rows, positions = np.arange(len(rows) + 1), rows, num_computed.copy()
    else:
        query_start_loc = np.concatenate(([0], num_scheduled.cumsum()))
        token_rows = rows.repeat(num_scheduled)
        positions = np.arange(query_start_loc[-1]) + (num_computed - query_start_loc[:-1]).repeat(num_scheduled)
    most_blocks = -(-int(seq_lens.max()) // batch.block_tables[0].block_size)
    return StepInputs(
        serials=serials,
        rows=rows,
        input_ids=torch.from_numpy(batch.token_ids[token_rows, positions + ahead].astype(np.int64)),
        positions=torch.from_numpy(positions),
        slot_mappings=tuple(torch.from_numpy(table.slots(token_rows, positions)) for table in batch.block_tables),
        query_start_loc=torch.from_numpy(query_start_loc),
        seq_lens=torch.from_numpy(seq_lens),
        block_tables=tuple(torch.from_numpy(table.table[rows, :most_blocks]) for table in batch.block_tables),
        sampled=np.arange(len(rows)),
        num_drafts=np.zeros(len(rows), dtype=np.int64),
    )
