"""How many KV cache blocks there are, and the tensors that hold them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from engine.attention.backend import AttentionBackend
from engine.config import EngineConfig, KVCacheGroup, longest_request, most_blocks
from engine.errors import ConfigError
from engine.layers.attention import KVCacheOfLayer
from engine.models.causal_lm import CausalLM
from engine.worker.layer_groups import group_layers
from engine.worker.memory import GIB, Memory, gib

#: On a CPU the cache shares the memory with everything else, so it takes little unless told otherwise.
CPU_CACHE_BYTES = GIB
#: Nor does it take more than this share of what is available once the model is loaded.
CPU_CACHE_SHARE = 0.5


class CacheShape(NamedTuple):
    """What one block takes."""

    block_size: int
    sliding_windows: tuple[int | None, ...]
    """Per layer, as in `Architecture`."""
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype
    drafter: CacheShape | None = None
    """Of a draft model, whose layers join the one group that there is: the same blocks, in tensors of its own."""

    @classmethod
    def of(cls, decoder: CausalLM, block_size: int, drafter: CausalLM | None = None) -> CacheShape:
        """The shape of a decoder's cache, and of its drafter's."""
        architecture = decoder.architecture
        return cls(
            block_size,
            architecture.sliding_windows,
            architecture.num_kv_heads,
            architecture.head_size,
            decoder.dtype,
            None if drafter is None else cls.of(drafter, block_size),
        )

    @property
    def block_bytes(self) -> int:
        """Bytes of a block over the layers of its group: keys and values, block_size × num_kv_heads × head_size
        elements each. A block may serve any group, so it has room for the largest."""
        per_layer = 2 * self.block_size * self.num_kv_heads * self.head_size * self.dtype.itemsize
        return per_layer * self.num_layers + (0 if self.drafter is None else self.drafter.block_bytes)

    @property
    def num_layers(self) -> int:
        """Layers that a block has room for."""
        return max(len(group.layers) for group in group_layers(self.sliding_windows))

    @property
    def groups(self) -> tuple[KVCacheGroup, ...]:
        """How the KV of which layers is kept; a drafter's layers are counted on from the model's."""
        num_drafter = 0 if self.drafter is None else len(self.drafter.sliding_windows)
        num_layers = len(self.sliding_windows)
        drafter = tuple(range(num_layers, num_layers + num_drafter))
        return tuple(
            KVCacheGroup(
                kind="full_attention" if group.sliding_window is None else "sliding_window",
                num_layers=len(group.layers + drafter),
                layers=group.layers + drafter,
                sliding_window=group.sliding_window,
                block_bytes=self.block_bytes,
            )
            for group in group_layers(self.sliding_windows)
        )


def bind_kv_cache(decoder: CausalLM, shape: CacheShape, num_blocks: int, backend: AttentionBackend[Any]) -> None:
    """Allocate the cache, in the backend's layout, and hand each attention layer its part.

    The first layers of all groups share one tensor, so do the second ones, and so on: a block belongs to one group at
    a time, and only the layers of that group read and write it.

    The cache is left as allocated, which on a CPU costs no memory until a block is used: attention never reads a slot
    that was not written.
    """
    device = decoder.device
    shapes = backend.kv_cache_shapes(num_blocks)
    caches = [[torch.empty(size, dtype=shape.dtype, device=device) for size in shapes] for _ in range(shape.num_layers)]
    attentions = list(decoder.attentions())
    for number, group in enumerate(group_layers(shape.sliding_windows)):
        for layer, (key_cache, value_cache) in zip(group.layers, caches, strict=False):
            attentions[layer].kv_cache = KVCacheOfLayer(backend, key_cache, value_cache, number)


def cache_budget(config: EngineConfig, memory: Memory, device: torch.device, working_bytes: int) -> int:
    """Bytes that the KV cache may take, once the model is loaded.

    Args:
        config: `kv_cache_memory_bytes` is taken at its word; without it the device decides.
        memory: what the device has now, weights loaded.
        device: cpu: the least of 1 GiB and half of what is available; cuda: the share `gpu_memory_utilization` of all
            memory, less what is taken.
        working_bytes: what steps take beside the weights: activations, CUDA graphs.
    """
    left = memory.available - working_bytes
    asked = config.cache.kv_cache_memory_bytes
    if asked is not None:
        if asked > left:
            raise ConfigError(
                f"kv_cache_memory_bytes={asked} ({gib(asked)}) does not fit: {gib(max(0, left))} are left of "
                f"{gib(memory.total)} beside the model and {gib(working_bytes)} for its forward pass."
            )
        return asked
    if device.type == "cuda":
        reserved = int(memory.total * (1.0 - config.cache.gpu_memory_utilization))
        return max(0, left - reserved)
    return max(0, min(CPU_CACHE_BYTES, int(left * CPU_CACHE_SHARE)))


def resolve_num_blocks(
    config: EngineConfig, shape: CacheShape, max_model_len: int, memory: Memory, budget: int, working_bytes: int
) -> int:
    """Blocks in the pool, the null block included.

    As many as the budget holds, but no more than `max_num_seqs` requests of `max_model_len` tokens could fill.
    `num_gpu_blocks_override` stands above both, as long as it fits into the memory.

    Raises:
        ConfigError: the override does not fit, or one request of `max_model_len` tokens does not fit into the pool.
    """
    override = config.cache.num_gpu_blocks_override
    if override is not None:
        left = memory.available - working_bytes
        if override * shape.block_bytes > left:
            raise ConfigError(
                f"num_gpu_blocks_override={override} needs {gib(override * shape.block_bytes)} "
                f"({gib(shape.block_bytes)} a block), but {gib(max(0, left))} are left: "
                f"at most {max(0, left // shape.block_bytes)} blocks fit."
            )
        return override
    groups = shape.groups
    blocks_per_request = most_blocks(groups, shape.block_size, max_model_len, config)
    most = config.scheduler.max_num_seqs * blocks_per_request + 1
    num_blocks = min(most, budget // shape.block_bytes)
    if num_blocks < blocks_per_request + 1:
        needed = (blocks_per_request + 1) * shape.block_bytes
        longest = longest_request(groups, shape.block_size, max(0, num_blocks - 1), max_model_len, config)
        smaller = f"max_model_len to {longest} or less" if longest > 1 else f"block_size, which is {shape.block_size}"
        raise ConfigError(
            f"One request of max_model_len={max_model_len} tokens needs {gib(needed)} of KV cache "
            f"({blocks_per_request} blocks and the null block), but only {gib(budget)} are there: lower {smaller}, "
            f"or set kv_cache_memory_bytes to {needed} or more."
        )
    return num_blocks
