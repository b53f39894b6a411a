"""A KV cache block, and the queue of blocks that can be handed out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engine.core.kv_cache.block_hash import BlockHash


class KVCacheBlock:
    """Room for the keys and values of `block_size` tokens.

    A block is *in use* while `ref_count` > 0. At 0 it stands in the free queue; if it still has a hash, it is also
    *cached*: its KV is intact and a request that begins with the same tokens may revive it.
    """

    __slots__ = ("block_hash", "block_id", "group", "next_free", "prev_free", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.block_hash: BlockHash | None = None
        self.group = 0
        self.prev_free: KVCacheBlock | None = None
        self.next_free: KVCacheBlock | None = None

    def __repr__(self) -> str:
        return f"KVCacheBlock({self.block_id}, ref_count={self.ref_count}, cached={self.block_hash is not None})"


class FreeBlockQueue:
    """Doubly linked list over the blocks themselves: O(1) at both ends *and* in the middle, with no allocation.

    ::

        head ⇄ 22 ⇄ 23 ⇄ … ⇄ 63 ⇄ 21 ⇄ 20 ⇄ tail        popped on the left, freed blocks join on the right
                                     ╰── a prefix hit takes one out of the middle

    The left end is therefore the block that nobody has used for the longest time: popping it evicts in LRU order.
    """

    def __init__(self, blocks: Iterable[KVCacheBlock]) -> None:
        # Two sentinels spare every operation the question whether it stands at an end.
        self._head = KVCacheBlock(-1)
        self._tail = KVCacheBlock(-1)
        self._head.next_free, self._tail.prev_free = self._tail, self._head
        self._length = 0
        for block in blocks:
            self.append(block)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[KVCacheBlock]:
        block = self._head.next_free
        while block is not None and block is not self._tail:
            yield block
            block = block.next_free

    def append(self, block: KVCacheBlock) -> None:
        """Let `block` join on the right: it will be handed out last."""
        last = self._tail.prev_free
        assert last is not None
        last.next_free, block.prev_free = block, last
        block.next_free, self._tail.prev_free = self._tail, block
        self._length += 1

    def popleft(self, count: int) -> list[KVCacheBlock]:
        """Take the `count` blocks that were freed longest ago, in that order.

        Raises:
            IndexError: the queue is shorter.
        """
        if count > self._length:
            raise IndexError(f"pop of {count} blocks from a free_block_queue of {self._length}")
        popped: list[KVCacheBlock] = []
        block = self._head.next_free
        for _ in range(count):
            assert block is not None
            popped.append(block)
            after = block.next_free
            block.prev_free = block.next_free = None
            block = after
        # What is left is joined to the head once: a long prompt takes a hundred blocks in a step.
        assert block is not None
        self._head.next_free, block.prev_free = block, self._head
        self._length -= count
        return popped

    def remove(self, block: KVCacheBlock) -> None:
        """Take `block` out from wherever it stands.

        Raises:
            ValueError: the block is not in the queue.
        """
        before, after = block.prev_free, block.next_free
        if before is None or after is None:
            raise ValueError(f"block {block.block_id} is not in free_block_queue")
        before.next_free, after.prev_free = after, before
        block.prev_free = block.next_free = None
        self._length -= 1
