"""BlockPool: every block of the KV cache, which of them are free, and which are findable by hash."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.core.kv_cache.block import FreeBlockQueue, KVCacheBlock
from engine.core.kv_cache.block_hash import BlockHash


class BlockPool:
    """Hands out blocks, takes them back, remembers whose content is still good.

    A block loses its hash only when it is handed out again: until then a freed block is a cache entry. Several
    blocks may hold the same content (two requests computed it side by side); they are not merged, because a block
    table never changes once written.
    """

    def __init__(self, num_blocks: int, num_groups: int = 1) -> None:
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        # Block 0 stands for "no block": it is never handed out, so a table may point at it where nothing is kept.
        self.null_block = self.blocks[0]
        self.free_block_queue = FreeBlockQueue(self.blocks[1:])
        self.cached_block_hash_to_block: list[dict[BlockHash, KVCacheBlock]] = [{} for _ in range(num_groups)]
        # Twins are rare, and a dictionary for every hash would keep the garbage collector busy.
        self._twins: list[dict[BlockHash, dict[int, KVCacheBlock]]] = [{} for _ in range(num_groups)]

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be handed out, cached ones included."""
        return len(self.free_block_queue)

    @property
    def num_blocks_in_use(self) -> int:
        """Blocks that some request holds."""
        return len(self.blocks) - 1 - len(self.free_block_queue)

    def get_cached_block(self, block_hash: BlockHash, group: int = 0) -> KVCacheBlock | None:
        """The first block cached under this hash, if there is one."""
        return self.cached_block_hash_to_block[group].get(block_hash)

    def cached_blocks(self, group: int = 0) -> dict[BlockHash, list[KVCacheBlock]]:
        """Every block that can be found, the first of each hash first."""
        twins = self._twins[group]
        return {
            block_hash: [block, *twins.get(block_hash, {}).values()]
            for block_hash, block in self.cached_block_hash_to_block[group].items()
        }

    def get_new_blocks(self, num_blocks: int) -> tuple[list[KVCacheBlock], list[tuple[int, BlockHash]]]:
        """Take blocks from the left of the free queue; the caller has checked that there are enough.

        Returns:
            The blocks, and (block id, hash) of every cached prefix that was evicted to get them.
        """
        new_blocks = self.free_block_queue.popleft(num_blocks)
        evicted: list[tuple[int, BlockHash]] = []
        for block in new_blocks:
            block.ref_count = 1
            if block.block_hash is not None:
                evicted.append((block.block_id, block.block_hash))
                self.uncache(block)
        return new_blocks, evicted

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Count one more user of each block; a free one leaves the queue and lives again. Nobody counts the null
        block's."""
        for block in blocks:
            if block is self.null_block:
                continue
            if block.ref_count == 0:
                self.free_block_queue.remove(block)
            block.ref_count += 1

    def free_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Count one user less of each block; those without any join the free queue in the order given."""
        for block in blocks:
            block.ref_count -= 1
            if block.ref_count == 0:
                self.free_block_queue.append(block)

    def cache_full_blocks(self, blocks: Sequence[KVCacheBlock], hashes: Sequence[BlockHash], group: int = 0) -> None:
        """Make full blocks findable by their hashes."""
        cached, twins = self.cached_block_hash_to_block[group], self._twins[group]
        for block, block_hash in zip(blocks, hashes, strict=True):
            block.block_hash, block.group = block_hash, group
            if cached.setdefault(block_hash, block) is not block:
                twins.setdefault(block_hash, {})[block.block_id] = block

    def uncache(self, block: KVCacheBlock) -> None:
        """Take the hash from a block: nobody finds it any more."""
        block_hash = block.block_hash
        assert block_hash is not None
        cached, all_twins = self.cached_block_hash_to_block[block.group], self._twins[block.group]
        twins = all_twins.get(block_hash, {})
        if cached[block_hash] is not block:
            del twins[block.block_id]
        elif twins:
            cached[block_hash] = twins.pop(next(iter(twins)))
        else:
            del cached[block_hash]
        if not twins:
            all_twins.pop(block_hash, None)
        block.block_hash = None

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix. Refused, with False, while any block is in use."""
        if self.num_blocks_in_use:
            return False
        for cached, twins in zip(self.cached_block_hash_to_block, self._twins, strict=True):
            cached.clear()
            twins.clear()
        for block in self.blocks:
            block.block_hash = None
        return True
