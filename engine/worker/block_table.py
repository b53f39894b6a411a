"""The block tables of the running requests, as one array."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class BlockTable:
    """Which block holds which tokens of which batch row, and thereby the slot of every token.

    ::

        row 3   [7, 2, 9]      block_size 4      position 6 ─► table[3, 6 // 4] × 4 + 6 % 4 = slot 10

    Args:
        num_rows: rows of the batch.
        max_model_len: most tokens of a row.
        block_size: tokens of a block.
    """

    def __init__(self, num_rows: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        self.table: NDArray[np.int32] = np.zeros((num_rows, -(-max_model_len // block_size)), dtype=np.int32)
        self._num_blocks = [0] * num_rows

    def replace(self, row: int, block_ids: list[int]) -> None:
        """Give a row a whole new table."""
        self._num_blocks[row] = 0
        self.append(row, block_ids)

    def append(self, row: int, block_ids: list[int]) -> None:
        """Add blocks at the end of a row's table."""
        begin = self._num_blocks[row]
        end = begin + len(block_ids)
        self.table[row, begin:end] = block_ids
        self._num_blocks[row] = end

    def blocks_of(self, row: int) -> list[int]:
        """The row's block ids, in the order of its tokens."""
        block_ids: list[int] = self.table[row, : self._num_blocks[row]].tolist()
        return block_ids

    def num_slots(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens that the blocks of rows have room for, [n]."""
        return np.array([self._num_blocks[row] for row in rows.tolist()], dtype=np.int64) * self.block_size

    def slots(self, rows: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slot of each (row, position), [n]."""
        return self.table[rows, positions // self.block_size] * np.int64(self.block_size) + positions % self.block_size
