"""The coordinator: block tables of all requests, one set per KV cache group.

Layers whose KV is kept by the same rule form a group and share one block table per request. The manager above sees
one answer for all groups; each group here keeps its own tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.kv_cache.block import KVCacheBlock
from engine.core.kv_cache.block_hash import BlockHash
from engine.core.kv_cache.block_pool import BlockPool


class FullAttentionGroup:
    """Layers that look back at every token: a request's blocks stay until it ends."""

    def __init__(self, group: int, block_size: int, block_pool: BlockPool) -> None:
        self.group = group
        self.block_size = block_size
        self.block_pool = block_pool
        self.req_to_blocks: dict[int, list[KVCacheBlock]] = {}
        self.num_cached_blocks: dict[int, int] = {}
        """Per request: how many of its first blocks have their hash."""

    def num_blocks_missing(self, serial: int, num_tokens: int, num_hit_blocks: int) -> int:
        """Blocks to allocate so that `num_tokens` have a place: the hit ones are counted as there."""
        required = -(-num_tokens // self.block_size)
        return max(0, required - num_hit_blocks - len(self.req_to_blocks.get(serial, ())))

    def find_longest_cache_hit(self, hashes: Sequence[BlockHash], max_num_tokens: int) -> list[KVCacheBlock]:
        """The blocks of the longest cached prefix of at most `max_num_tokens` tokens."""
        hit: list[KVCacheBlock] = []
        for block_hash in hashes[: max_num_tokens // self.block_size]:
            block = self.block_pool.get_cached_block(block_hash, self.group)
            if block is None:
                break
            hit.append(block)
        return hit

    def adopt(self, serial: int, hit_blocks: Sequence[KVCacheBlock]) -> None:
        """Let a request share blocks found in the cache; they come before all others in its table."""
        self.block_pool.touch(hit_blocks)
        self.req_to_blocks.setdefault(serial, []).extend(hit_blocks)
        self.num_cached_blocks[serial] = len(hit_blocks)

    def allocate(self, serial: int, num_blocks: int) -> tuple[list[KVCacheBlock], list[tuple[int, BlockHash]]]:
        """Append new blocks to a request's table; also returns the cached prefixes that were evicted for them."""
        new_blocks, evicted = self.block_pool.get_new_blocks(num_blocks)
        self.req_to_blocks.setdefault(serial, []).extend(new_blocks)
        return new_blocks, evicted

    def cache_blocks(self, serial: int, hashes: Sequence[BlockHash], num_tokens: int) -> tuple[int, list[KVCacheBlock]]:
        """Give their hash to the blocks that the first `num_tokens` tokens fill.

        Returns:
            Index in the table of the first block that got its hash now, and those blocks.
        """
        first = self.num_cached_blocks.get(serial, 0)
        full = num_tokens // self.block_size
        if full <= first:
            return first, []
        blocks = self.req_to_blocks[serial][first:full]
        self.block_pool.cache_full_blocks(blocks, hashes[first:full], self.group)
        self.num_cached_blocks[serial] = full
        return first, blocks

    def free(self, serial: int) -> list[KVCacheBlock]:
        """Give up a request's blocks, tail first: the beginning of a prompt is the part others may share, so it
        should be evicted last."""
        self.num_cached_blocks.pop(serial, None)
        blocks = self.req_to_blocks.pop(serial, [])[::-1]
        self.block_pool.free_blocks(blocks)
        return blocks


class KVCacheCoordinator:
    """All groups behind one interface; every group draws on the same pool."""

    def __init__(self, num_groups: int, block_size: int, block_pool: BlockPool) -> None:
        self.block_size = block_size
        self.groups = [FullAttentionGroup(group, block_size, block_pool) for group in range(num_groups)]

    def find_longest_cache_hit(self, hashes: Sequence[BlockHash], max_num_tokens: int) -> list[list[KVCacheBlock]]:
        """Per group, the blocks of the longest prefix that every group has cached."""
        hits = [group.find_longest_cache_hit(hashes, max_num_tokens) for group in self.groups]
        shortest = min(len(hit) for hit in hits)
        return [hit[:shortest] for hit in hits]

    def num_blocks_to_take(self, serial: int, num_tokens: int, hits: Sequence[Sequence[KVCacheBlock]]) -> int:
        """Blocks that `num_tokens` would take out of the free queue, over all groups.

        A hit block that is free counts too: reviving it takes it out of the queue just as a new one.
        """
        return sum(
            group.num_blocks_missing(serial, num_tokens, len(hit)) + sum(block.ref_count == 0 for block in hit)
            for group, hit in zip(self.groups, hits, strict=True)
        )
