"""The inputs of a step on their way to a GPU, and the fixed places where its kernels find them.

A CUDA graph reads the addresses that it was captured with, so steps of one size write their inputs to the same places.
On the host they are gathered in pinned memory, from which a copy is only queued; there are two sets of it, so that a
step can be written down while the copies of the one before still run::

    host     pinned set 0 ─┐   pinned set 1 ─┐   pinned set 0 …
    device                 └─► one set       └─► the same

All vectors travel in one copy, all block tables in another.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.backend import AttentionInputs
from engine.worker.step_inputs import StepInputs

#: What padding is: a request that attends to nothing, and whose keys and values are written nowhere.
PADDED_SEQ_LEN = 0
PADDED_SLOT = -1

#: Each vector begins at a multiple of so many elements: kernels are compiled for the alignment of their arguments.
_ALIGNMENT = 32


class DeviceInputs(NamedTuple):
    """What the kernels of a step read."""

    input_ids: Tensor
    """[num_tokens] int64."""
    positions: Tensor
    """[num_tokens] int64."""
    groups: tuple[AttentionInputs, ...]
    """Per KV cache group."""


def stay_on_host(inputs: StepInputs, num_padded_tokens: int) -> DeviceInputs:
    """For kernels that run on the CPU: the tensors as they are. Nothing is captured there, so nothing is padded."""
    return DeviceInputs(inputs.input_ids, inputs.positions, inputs.groups)


class InputBuffers:
    """Room for the inputs of any step.

    Args:
        max_num_tokens: most tokens of a step, padding included.
        max_num_requests: most requests of a step, padding included.
        max_blocks: most blocks of a request.
        num_groups: KV cache groups.
        device: where the kernels run.
    """

    def __init__(
        self, max_num_tokens: int, max_num_requests: int, max_blocks: int, num_groups: int, device: torch.device
    ) -> None:
        self._on_gpu = device.type == "cuda"
        self._num_groups = num_groups
        vectors = sum(map(_aligned, _lengths(max_num_tokens, max_num_requests, num_groups)))
        tables = num_groups * max_num_requests * max_blocks
        self._vectors = torch.zeros(vectors, dtype=torch.int64, device=device)
        self._packed_tables = torch.zeros(tables, dtype=torch.int32, device=device)
        self._tables = torch.zeros(num_groups, max_num_requests, max_blocks, dtype=torch.int32, device=device)
        self._staging = [
            (
                torch.zeros(vectors, dtype=torch.int64, pin_memory=self._on_gpu),
                torch.zeros(tables, dtype=torch.int32, pin_memory=self._on_gpu),
            )
            for _ in range(2)
        ]
        self._decodes: dict[int, DeviceInputs] = {}
        """The places of so many decodes."""
        self._copied: list[torch.cuda.Event | None] = [None, None]
        self._turn = 0

    def place(self, inputs: StepInputs, num_padded_tokens: int) -> DeviceInputs:
        """Queue the copies of a step.

        Args:
            inputs: the step.
            num_padded_tokens: if more than it has, all its requests are decodes, and they are padded to so many.

        Returns:
            The places on the device, as far as the step fills them.
        """
        copied = self._copied[self._turn]
        if copied is not None:
            copied.synchronize()  # of the step before the last: done long ago
        num_requests = inputs.seq_lens.numel()
        num_rows = num_requests + num_padded_tokens - inputs.input_ids.numel()
        vectors, tables = self._staging[self._turn]
        used = self._write_vectors(vectors.numpy(), inputs, num_padded_tokens, num_rows)
        self._vectors[:used].copy_(vectors[:used], non_blocking=True)

        # They are wide, and a step fills few of their columns: only these travel, packed.
        columns = inputs.block_tables[0].shape[1]
        shape = self._num_groups, num_rows, columns
        packed = tables[: self._num_groups * num_rows * columns]
        for target, table in zip(packed.numpy().reshape(shape), inputs.block_tables, strict=True):
            target[:num_requests] = table.numpy()
            target[num_requests:] = 0
        on_device = self._packed_tables[: packed.numel()].copy_(packed, non_blocking=True)
        self._tables[:, :num_rows, :columns] = on_device.view(shape)
        self._take_turns()
        return self._views(num_padded_tokens, num_rows)

    def place_padding(self, num_rows: int) -> DeviceInputs:
        """Decodes that are padding and nothing else: what a graph is captured over."""
        placed = self._views(num_rows, num_rows)
        placed.input_ids.zero_()
        placed.positions.zero_()
        for group in placed.groups:
            group.block_tables.zero_()
            group.slot_mapping.fill_(PADDED_SLOT)
            group.seq_lens.fill_(PADDED_SEQ_LEN)
            torch.arange(num_rows + 1, out=group.query_start_loc)
        return placed

    def _write_vectors(self, flat: NDArray[np.int64], inputs: StepInputs, num_tokens: int, num_rows: int) -> int:
        """Write a step's vectors into pinned memory, padding behind them; returns the elements it takes."""
        lengths = _lengths(num_tokens, num_rows, self._num_groups)
        starts = list(accumulate(map(_aligned, lengths), initial=0))
        *by_token, query_start_loc, seq_lens = (
            flat[start : start + length] for start, length in zip(starts, lengths, strict=False)
        )
        real, num_requests = inputs.input_ids.numel(), inputs.seq_lens.numel()
        sources = inputs.input_ids, inputs.positions, *inputs.slot_mappings
        for target, source in zip(by_token, sources, strict=True):
            target[:real] = source.numpy()
        for target in by_token[:2]:
            target[real:] = 0
        for target in by_token[2:]:
            target[real:] = PADDED_SLOT
        query_start_loc[: num_requests + 1] = inputs.query_start_loc.numpy()
        query_start_loc[num_requests:] = np.arange(real, num_tokens + 1)
        seq_lens[:num_requests] = inputs.seq_lens.numpy()
        seq_lens[num_requests:] = PADDED_SEQ_LEN
        return starts[-2] + num_rows

    def _views(self, num_tokens: int, num_rows: int) -> DeviceInputs:
        """The places of a step on the device; those of decodes are asked for again and again."""
        known = self._decodes.get(num_rows) if num_tokens == num_rows else None
        if known is not None:
            return known
        lengths = _lengths(num_tokens, num_rows, self._num_groups)
        starts = accumulate(map(_aligned, lengths), initial=0)
        input_ids, positions, *slots, query_start_loc, seq_lens = (
            self._vectors[start : start + length] for start, length in zip(starts, lengths, strict=False)
        )
        groups = (
            AttentionInputs(table[:num_rows], query_start_loc, seq_lens, slot_mapping)
            for table, slot_mapping in zip(self._tables, slots, strict=True)
        )
        made = DeviceInputs(input_ids, positions, tuple(groups))
        if num_tokens == num_rows:
            self._decodes[num_rows] = made
        return made

    def _take_turns(self) -> None:
        if self._on_gpu:
            event = self._copied[self._turn] or torch.cuda.Event()
            event.record()
            self._copied[self._turn] = event
        self._turn = 1 - self._turn


def _lengths(num_tokens: int, num_rows: int, num_groups: int) -> list[int]:
    """Of token ids, positions, slots of every group; of query_start_loc and seq_lens."""
    return [num_tokens] * (2 + num_groups) + [num_rows + 1, num_rows]


def _aligned(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT
