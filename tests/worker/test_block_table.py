from __future__ import annotations

import numpy as np

from engine.worker.block_table import BlockTable


def test_slots_follow_the_blocks() -> None:
    table = BlockTable(num_rows=2, max_model_len=10, block_size=4)
    table.append(0, [7])
    table.append(0, [2, 9])
    table.append(1, [5])
    slots = table.slots(np.array([0, 0, 0, 1]), np.array([0, 6, 9, 3]))
    assert slots.tolist() == [28, 10, 37, 23]


def test_a_row_taken_over_forgets_its_blocks() -> None:
    table = BlockTable(num_rows=1, max_model_len=16, block_size=4)
    table.append(0, [7, 8, 9])
    table.replace(0, [3])
    assert table.blocks_of(0) == [3]
    table.append(0, [4])
    assert table.blocks_of(0) == [3, 4]
