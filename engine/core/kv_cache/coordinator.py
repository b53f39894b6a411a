"""The coordinator: all KV cache groups of a model behind one interface.

Layers whose KV is kept by the same rule form a group and share one block table per request. A model of one kind has
one group; a hybrid one has several, which hold different blocks of the same pool for the same tokens. To what must be
answered for all of them (the hit, the blocks to take) the manager above sees one answer; allocating, caching and
freeing it does group by group, over `groups`.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.config import KVCacheGroup
from engine.core.kv_cache.block import KVCacheBlock
from engine.core.kv_cache.block_hash import BlockHash
from engine.core.kv_cache.block_pool import BlockPool
from engine.core.kv_cache.full_attention import FullAttentionGroup
from engine.core.kv_cache.group import CacheGroup
from engine.core.kv_cache.sliding_window import SlidingWindowGroup


class KVCacheCoordinator:
    """Every group draws on the same pool.

    Args:
        specs: per group, how its KV is kept.
        num_dropped_hit_blocks: blocks dropped from the end of every hit, which are then computed anew.
    """

    def __init__(
        self, specs: Sequence[KVCacheGroup], block_size: int, block_pool: BlockPool, num_dropped_hit_blocks: int
    ) -> None:
        self.block_size = block_size
        self.block_pool = block_pool
        self._num_dropped_hit_blocks = num_dropped_hit_blocks
        self.groups = [
            _make_group(group, spec, block_size, block_pool, num_dropped_hit_blocks) for group, spec in enumerate(specs)
        ]
        self.sliding_windows = [group for group in self.groups if isinstance(group, SlidingWindowGroup)]

    def find_longest_cache_hit(self, hashes: Sequence[BlockHash], max_num_tokens: int) -> list[list[KVCacheBlock]]:
        """Per group, the blocks of the longest prefix from which all groups can go on; as many for each.

        The groups take turns: what one has bounds the next, until a whole round changes nothing. A shorter prefix of
        a full attention hit is a hit again, that of a sliding window need not be: it searches anew.
        """
        num_blocks = max_num_tokens // self.block_size
        while True:
            hits: list[list[KVCacheBlock]] = []
            for group in self.groups:
                hits.append(group.find_longest_cache_hit(hashes, num_blocks))
                num_blocks = len(hits[-1])
            if all(len(hit) == num_blocks for hit in hits):
                return [hit[: max(0, num_blocks - self._num_dropped_hit_blocks)] for hit in hits]

    def num_blocks_to_take(self, serial: int, num_tokens: int, hits: Sequence[Sequence[KVCacheBlock]]) -> int:
        """Blocks that `num_tokens` would take out of the free queue, over all groups.

        A hit block that is free counts too: reviving it takes it out of the queue just as a new one.
        """
        if not hits[0]:
            if len(self.groups) == 1:
                return self.groups[0].num_blocks_missing(serial, num_tokens, 0)
            return sum([group.num_blocks_missing(serial, num_tokens, 0) for group in self.groups])
        null_block, number = self.block_pool.null_block, 0
        for group, hit in zip(self.groups, hits, strict=True):
            number += group.num_blocks_missing(serial, num_tokens, len(hit))
            number += sum(block.ref_count == 0 and block is not null_block for block in hit)
        return number

    def num_cached_blocks(self, serial: int) -> int:
        """How many of a request's first blocks have their hash in every group, or no longer need one."""
        first, *others = self.groups
        number = first.num_cached_blocks.get(serial, 0)
        return min(number, *[group.num_cached_blocks.get(serial, 0) for group in others]) if others else number


def _make_group(
    group: int, spec: KVCacheGroup, block_size: int, block_pool: BlockPool, num_dropped_hit_blocks: int
) -> CacheGroup:
    if spec.sliding_window is None:
        return FullAttentionGroup(group, block_size, block_pool)
    return SlidingWindowGroup(group, block_size, block_pool, spec.sliding_window, num_dropped_hit_blocks)
