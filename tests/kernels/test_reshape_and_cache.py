"""Keys and values land in their slots, and nowhere else."""

from __future__ import annotations

import pytest
import torch

from kernels.reshape_and_cache import reshape_and_cache, slot_rows


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_tokens_land_in_their_slots_and_nowhere_else(block_size: int) -> None:
    num_blocks, num_kv_heads, head_size, num_tokens = 7, 2, 4, 7
    shape = (num_blocks, num_kv_heads, block_size, head_size)
    key_cache, value_cache = torch.full(shape, 9.0), torch.full(shape, 9.0)
    slots = torch.randperm(num_blocks * block_size)[:num_tokens]
    # Sliced out of a wider tensor, as they come from the fused projection.
    key, value = torch.randn(num_tokens, 2 * num_kv_heads, head_size).split(num_kv_heads, dim=1)
    reshape_and_cache(key, value, key_cache, value_cache, slot_rows(slots, num_kv_heads, block_size))

    for cache, written in ((key_cache, key), (value_cache, value)):
        by_slot = cache.transpose(1, 2).reshape(-1, num_kv_heads, head_size)
        assert torch.equal(by_slot[slots], written)
        untouched = torch.ones(len(by_slot), dtype=torch.bool)
        untouched[slots] = False
        assert (by_slot[untouched] == 9.0).all()


def test_a_slot_outside_the_cache_is_refused() -> None:
    cache = torch.zeros(2, 1, 4, 8)
    with pytest.raises((IndexError, RuntimeError)):
        reshape_and_cache(
            torch.ones(1, 1, 8), torch.ones(1, 1, 8), cache, cache.clone(), slot_rows(torch.tensor([8]), 1, 4)
        )


def test_shapes_that_contradict_each_other_are_refused() -> None:
    cache = torch.zeros(2, 1, 4, 8)
    with pytest.raises(ValueError, match=r"rows \[num_tokens"):
        reshape_and_cache(torch.ones(2, 1, 8), torch.ones(2, 1, 8), cache, cache, torch.tensor([1]))
    with pytest.raises(ValueError, match="key_cache and value_cache must be"):
        reshape_and_cache(torch.ones(1, 2, 8), torch.ones(1, 2, 8), cache, cache, torch.tensor([1, 5]))
