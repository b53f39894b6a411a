"""Keys and values land in their slots, and nowhere else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.reshape_and_cache import reshape_and_cache, reshape_and_cache_triton, slot_rows

UNTOUCHED = 9.0


def check(caches: tuple[Tensor, Tensor], written: tuple[Tensor, Tensor], slots: Tensor) -> None:
    for cache, entries in zip(caches, written, strict=True):
        by_slot = cache.cpu().transpose(1, 2).flatten(0, 1)
        kept = slots >= 0
        assert torch.equal(by_slot[slots[kept]], entries[kept])
        untouched = torch.ones(len(by_slot), dtype=torch.bool)
        untouched[slots[kept]] = False
        assert untouched.any() and (by_slot[untouched] == UNTOUCHED).all()


def empty_caches(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.full(shape, UNTOUCHED, dtype=dtype), torch.full(shape, UNTOUCHED, dtype=dtype)


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_tokens_land_in_their_slots_and_nowhere_else(block_size: int) -> None:
    caches = empty_caches(7, 2, block_size, 4)
    slots = torch.randperm(7 * block_size)[:6]
    # Sliced out of a wider tensor, as they come from the fused projection.
    key, value = torch.randn(6, 4, 4).split(2, dim=1)
    reshape_and_cache(key, value, *caches, slot_rows(slots, 2, block_size))
    check(caches, (key, value), slots)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("block_size", "num_kv_heads", "head_size"), [(1, 1, 64), (8, 2, 80), (24, 3, 96), (256, 8, 16), (16, 70, 128)]
)
def test_on_a_gpu_tokens_land_in_their_slots_and_padding_nowhere(
    dtype: torch.dtype, block_size: int, num_kv_heads: int, head_size: int, device: str
) -> None:
    """As in a padded batch of a captured graph, whose last tokens have no slot."""
    caches = empty_caches(7, num_kv_heads, block_size, head_size, dtype=dtype)
    slots = torch.cat((torch.randperm(7 * block_size)[:5], torch.tensor([-1, -1])))
    fused = torch.randn(7, 2 * num_kv_heads, head_size).to(dtype)
    fused[5:] = torch.nan
    on_device = caches[0].to(device), caches[1].to(device)
    key, value = fused.to(device).split(num_kv_heads, dim=1)
    reshape_and_cache_triton(key, value, *on_device, slots.to(device))
    check(on_device, fused.split(num_kv_heads, dim=1), slots)


def test_on_a_gpu_keys_and_values_may_be_halves_of_one_tensor(device: str) -> None:
    both = torch.full((7, 2, 3, 8, 16), UNTOUCHED, device=device)
    slots = torch.randperm(7 * 8)[:5].to(torch.int32)
    written = torch.randn(5, 3, 16), torch.randn(5, 3, 16)
    key, value = (tensor.to(device) for tensor in written)
    reshape_and_cache_triton(key, value, both[:, 0], both[:, 1], slots.to(device))
    check((both[:, 0], both[:, 1]), written, slots)


def test_a_slot_outside_the_cache_is_refused() -> None:
    cache = torch.zeros(2, 1, 4, 8)
    with pytest.raises((IndexError, RuntimeError)):
        reshape_and_cache(
            torch.ones(1, 1, 8), torch.ones(1, 1, 8), cache, cache.clone(), slot_rows(torch.tensor([8]), 1, 4)
        )


def test_shapes_that_contradict_each_other_are_refused() -> None:
    cache = torch.zeros(2, 1, 4, 8)
    with pytest.raises(ValueError, match=r"rows must be \[2\]"):
        reshape_and_cache(torch.ones(2, 1, 8), torch.ones(2, 1, 8), cache, cache, torch.tensor([1]))
    with pytest.raises(ValueError, match="key_cache and value_cache must be"):
        reshape_and_cache(torch.ones(1, 2, 8), torch.ones(1, 2, 8), cache, cache, torch.tensor([1, 5]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": torch.ones(2, 8)}, r"key and value must be \[num_tokens"),
        ({"value": torch.ones(2, 1, 8).half()}, "one dtype"),
        ({"key": torch.ones(2, 1, 16)[..., ::2]}, "must be contiguous"),
        ({"slot_mapping": torch.zeros(3, dtype=torch.int64)}, "slot_mapping must be"),
        ({"slot_mapping": torch.zeros(2)}, "slot_mapping must be"),
        ({"value_cache": torch.zeros(2, 1, 5, 8)[:, :, :4]}, "strided alike"),
    ],
)
def test_what_the_kernel_cannot_take_is_refused(change: dict[str, Tensor], message: str) -> None:
    step = {
        "key": torch.ones(2, 1, 8),
        "value": torch.ones(2, 1, 8),
        "key_cache": torch.zeros(2, 1, 4, 8),
        "value_cache": torch.zeros(2, 1, 4, 8),
        "slot_mapping": torch.zeros(2, dtype=torch.int64),
    }
    with pytest.raises(ValueError, match=message):
        reshape_and_cache_triton(**{**step, **change})
