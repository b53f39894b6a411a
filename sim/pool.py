"""The block pool as the events of a trace tell it: who holds each block, which are free, and in which order.

Each fact is kept apart from the others on purpose. `ref_counts` is what the events say, `owners` is what the block
tables say, and `free_block_queue` is the order in which blocks came back: that they agree is for `sim.invariants` to
find out, not for this module to arrange.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import Literal, NamedTuple

#: Block 0 pads tables and replaces what a sliding window has passed; nobody computes into it and it is never free.
NULL_BLOCK = 0

BlockKind = Literal["null", "free", "cached", "in use", "shared"]


class Origin(NamedTuple):
    """Where the content of a block came from: entry `place` of the block table of `request`."""

    request: int
    group: int
    place: int
    parent: str | None = None
    """Hash of the block before it, the none hash before the first; None of a block that bears no hash itself."""


class BlockState(NamedTuple):
    """One physical block at one moment."""

    block_id: int
    kind: BlockKind  # cached: free, but its content can still be found; in use by one request, or shared by several
    ref_count: int
    hash: str | None
    owners: tuple[int, ...]
    origin: Origin | None


@dataclass(slots=True)
class PoolState:
    """Every block of the pool; the lists are indexed by block id and have one entry per block, null block included."""

    ref_counts: list[int]
    hashes: list[str | None]
    owners: list[tuple[int, ...]]
    origins: list[Origin | None]
    free_block_queue: dict[int, None]
    """Keys in order: the first is handed out next. A dict removes from the middle in constant time."""
    cached_block_hash_to_block: dict[str, tuple[int, ...]]
    """Hash to the blocks that bear it, oldest first: equal blocks are not merged."""

    @classmethod
    def fresh(cls, num_blocks: int) -> PoolState:
        """The pool at start: blocks 1 to `num_blocks - 1` are free, in order."""
        return cls(
            ref_counts=[0] * num_blocks,
            hashes=[None] * num_blocks,
            owners=[()] * num_blocks,
            origins=[None] * num_blocks,
            free_block_queue=dict.fromkeys(range(1, num_blocks)),
            cached_block_hash_to_block={},
        )

    def copy(self) -> PoolState:
        """A pool of its own: O(number of blocks), all in C."""
        return PoolState(
            ref_counts=self.ref_counts.copy(),
            hashes=self.hashes.copy(),
            owners=self.owners.copy(),
            origins=self.origins.copy(),
            free_block_queue=self.free_block_queue.copy(),
            cached_block_hash_to_block=self.cached_block_hash_to_block.copy(),
        )

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool, the null block included."""
        return len(self.ref_counts)

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, cached ones included."""
        return len(self.free_block_queue)

    @property
    def num_in_use(self) -> int:
        """Blocks that some request holds."""
        return self.num_blocks - 1 - self.num_free

    def block(self, block_id: int) -> BlockState:
        """One block, with the word for what it is."""
        ref_count, block_hash = self.ref_counts[block_id], self.hashes[block_id]
        return BlockState(
            block_id, self._kind(block_id), ref_count, block_hash, self.owners[block_id], self.origins[block_id]
        )

    def _kind(self, block_id: int) -> BlockKind:
        if block_id == NULL_BLOCK:
            return "null"
        if self.ref_counts[block_id] == 0:
            return "free" if self.hashes[block_id] is None else "cached"
        return "in use" if self.ref_counts[block_id] == 1 else "shared"

    def blocks(self) -> list[BlockState]:
        """Every block of the pool, by block id."""
        return [self.block(block_id) for block_id in range(self.num_blocks)]

    def counts(self, block_ids: range | None = None) -> dict[BlockKind, int]:
        """How many blocks are of each kind, in the whole pool or a part of it; shared ones are not counted under
        `in use`. Counts whole lists at a time: a pool has hundreds of thousands of blocks."""
        part = range(self.num_blocks) if block_ids is None else block_ids
        num_null = int(NULL_BLOCK in part)
        span = slice(part.start + num_null, part.stop)
        ref_counts, hashes = self.ref_counts[span], self.hashes[span]
        num_free, alone = ref_counts.count(0), ref_counts.count(1)
        num_empty = hashes.count(None) - list(compress(hashes, ref_counts)).count(None)
        return {
            "null": num_null,
            "free": num_empty,
            "cached": num_free - num_empty,
            "in use": alone,
            "shared": len(ref_counts) - num_free - alone,
        }

    # What events do to blocks. A ValueError is a fact that cannot be, in words that complete "event 7, kv.freed: ".

    def hand_out(self, block_id: int, owner: int) -> None:
        """A free block goes to a request; what it held is gone."""
        if block_id not in self.free_block_queue:
            raise ValueError(f"block {block_id} is handed out, but it is not in free_block_queue")
        del self.free_block_queue[block_id]
        self.ref_counts[block_id] = 1
        self.owners[block_id] = (owner,)
        self.origins[block_id] = None

    def share(self, block_id: int, owner: int, ref_count: int) -> None:
        """One more request holds a block, which leaves `free_block_queue` if it was there."""
        if block_id not in self.free_block_queue and not self.owners[block_id]:
            raise ValueError(f"block {block_id} is shared, but it is neither in use nor in free_block_queue")
        self.free_block_queue.pop(block_id, None)
        self.ref_counts[block_id] = ref_count
        self.owners[block_id] += (owner,)

    def give_up(self, block_id: int, owner: int, ref_count: int) -> None:
        """A request lets go of a block, which joins the tail of `free_block_queue` if nobody else holds it."""
        owners = self.owners[block_id]
        if owner not in owners:
            raise ValueError(f"r{owner} gives up block {block_id}, which it does not hold")
        self.owners[block_id] = tuple(other for other in owners if other != owner)
        self.ref_counts[block_id] = ref_count
        if ref_count == 0:
            if block_id in self.free_block_queue:
                raise ValueError(f"block {block_id} is freed, but it is in free_block_queue already")
            self.free_block_queue[block_id] = None

    def cache(self, block_id: int, block_hash: str, origin: Origin) -> None:
        """A block gets its hash and can be found."""
        if self.hashes[block_id] is not None:
            raise ValueError(f"block {block_id} gets a hash, but it has one already")
        self.hashes[block_id] = block_hash
        self.origins[block_id] = origin
        self.cached_block_hash_to_block[block_hash] = (*self.cached_block_hash_to_block.get(block_hash, ()), block_id)

    def uncache(self, block_id: int, block_hash: str) -> None:
        """A block loses its hash."""
        if self.hashes[block_id] != block_hash:
            raise ValueError(f"block {block_id} loses the hash {block_hash[:8]}…, which it does not bear")
        self.hashes[block_id] = self.origins[block_id] = None
        left = tuple(other for other in self.cached_block_hash_to_block[block_hash] if other != block_id)
        if left:
            self.cached_block_hash_to_block[block_hash] = left
        else:
            del self.cached_block_hash_to_block[block_hash]

    def forget_prefixes(self) -> None:
        """No block can be found any more; their order in `free_block_queue` stays."""
        self.hashes = [None] * self.num_blocks
        self.origins = [None] * self.num_blocks
        self.cached_block_hash_to_block = {}
