"""Sliding window attention: a token sees itself and the `sliding_window - 1` tokens before it, so blocks further back
are given up while the request still runs.

With blocks of 4 tokens and a window of 6, before token 13 gets its place::

    token           0 ···· 3   4 ···· 7   8 ··· 11   12 13
    token 13 sees                         8 ··· 11   12 13
    block table     [ null ]   [ null ]   [  a   ]   [  b   ]
                                  ╰ wholly before the window: freed, its place is kept by the null block
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.kv_cache.block import KVCacheBlock
from engine.core.kv_cache.block_hash import BlockHash
from engine.core.kv_cache.block_pool import BlockPool
from engine.core.kv_cache.group import CacheGroup


class SlidingWindowGroup(CacheGroup):
    """Layers that look back `sliding_window` tokens, the token itself included.

    Args:
        num_dropped_hit_blocks: blocks that are dropped from the end of every hit; what is left must suffice.
    """

    def __init__(
        self, group: int, block_size: int, block_pool: BlockPool, sliding_window: int, num_dropped_hit_blocks: int
    ) -> None:
        super().__init__(group, block_size, block_pool)
        self.sliding_window = sliding_window
        self._num_blocks_to_go_on = max(1, -(-(sliding_window - 1) // block_size)) + num_dropped_hit_blocks

    def find_longest_cache_hit(self, hashes: Sequence[BlockHash], max_num_blocks: int) -> list[KVCacheBlock]:
        """From the right: the last run of cached blocks that is as long as the window behind the next token.

        A shorter run is a hit only at the very beginning, where there is nothing before it to see.
        """
        num_blocks = min(max_num_blocks, len(hashes))
        hit = [self.block_pool.null_block] * num_blocks
        run = 0
        for place in reversed(range(num_blocks)):
            block = self.block_pool.get_cached_block(hashes[place], self.group)
            if block is None:
                run = 0
                continue
            hit[place] = block
            run += 1
            if run == self._num_blocks_to_go_on:
                return hit[: place + run]
        return hit[:run]

    def free_passed(self, serial: int, num_computed_tokens: int) -> list[KVCacheBlock]:
        """Give up the blocks that lie wholly before the window of the token after the computed ones, tail first."""
        table = self.req_to_blocks.get(serial, [])
        num_passed = self._num_passed(num_computed_tokens)
        null_block = self.block_pool.null_block
        passed: list[KVCacheBlock] = []
        for place in reversed(range(num_passed)):
            if table[place] is null_block:
                break
            passed.append(table[place])
            table[place] = null_block
        if passed:
            self.block_pool.free_blocks(passed)
            # Draft tokens can fill a block that gets no hash before a small window has passed it.
            self.num_cached_blocks[serial] = max(self.num_cached_blocks.get(serial, 0), num_passed)
        return passed

    def next_move(self, num_computed_tokens: int) -> int:
        """How many tokens must be computed until the window has passed another block."""
        return (self._num_passed(num_computed_tokens) + 1) * self.block_size + self.sliding_window - 1

    def _num_passed(self, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - self.sliding_window + 1) // self.block_size
