"""Full attention: every token sees all tokens before it, so a request keeps all of its blocks."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.kv_cache.block import KVCacheBlock
from engine.core.kv_cache.block_hash import BlockHash
from engine.core.kv_cache.group import CacheGroup


class FullAttentionGroup(CacheGroup):
    """Layers that look back at every token: a request's blocks stay until it ends."""

    def find_longest_cache_hit(self, hashes: Sequence[BlockHash], max_num_blocks: int) -> list[KVCacheBlock]:
        """From the left, until the first block that is not cached."""
        hit: list[KVCacheBlock] = []
        for block_hash in hashes[:max_num_blocks]:
            block = self.block_pool.get_cached_block(block_hash, self.group)
            if block is None:
                break
            hit.append(block)
        return hit
