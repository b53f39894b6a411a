"""The block tables of one KV cache group: layers whose KV is kept by the same rule share them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from engine.core.kv_cache.block import KVCacheBlock
from engine.core.kv_cache.block_hash import BlockHash
from engine.core.kv_cache.block_pool import BlockPool


class CacheGroup(ABC):
    """One block table per request, and how many of its first blocks have their hash.

    A table is append-only. The null block stands in it where nothing is kept, so that place i always belongs to the
    tokens from i × block_size on.
    """

    def __init__(self, group: int, block_size: int, block_pool: BlockPool) -> None:
        self.group = group
        self.block_size = block_size
        self.block_pool = block_pool
        self.req_to_blocks: dict[int, list[KVCacheBlock]] = {}
        self.num_cached_blocks: dict[int, int] = {}
        """Per request: how many of its first blocks have their hash, or no longer need one."""

    @abstractmethod
    def find_longest_cache_hit(self, hashes: Sequence[BlockHash], max_num_blocks: int) -> list[KVCacheBlock]:
        """The longest prefix of at most `max_num_blocks` blocks from which these layers can go on.

        Returns:
            Its blocks in order; the null block for those that the next token cannot see.
        """

    def num_blocks_missing(self, serial: int, num_tokens: int, num_hit_blocks: int) -> int:
        """Blocks to allocate so that `num_tokens` have a place: the hit ones are counted as there."""
        required = -(-num_tokens // self.block_size)
        return max(0, required - num_hit_blocks - len(self.req_to_blocks.get(serial, ())))

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
        null_block = self.block_pool.null_block
        blocks = [block for block in reversed(self.req_to_blocks.pop(serial, [])) if block is not null_block]
        self.block_pool.free_blocks(blocks)
        return blocks
