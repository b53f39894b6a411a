"""KVCacheManager: the face of the KV cache towards the scheduler.

What `allocate_slots` touches, for a request that found a prefix and needs two more blocks::

    block table   [ hit ][ hit ][ new ][ new ]
    tokens        |── computed ──|── scheduled ──|· room ·|
                                 ╰ blocks that these fill get their hash at once, before the forward pass writes them:
                                   a request scheduled later in the same step may already share them
"""

from __future__ import annotations

from typing import NamedTuple

from engine.config import EngineConfig, KVCacheConfig
from engine.core.kv_cache.block import KVCacheBlock
from engine.core.kv_cache.block_hash import BlockHash, hash_request_tokens
from engine.core.kv_cache.block_pool import BlockPool
from engine.core.kv_cache.coordinator import KVCacheCoordinator
from engine.core.kv_cache.group import CacheGroup
from engine.core.kv_cache.stats import CachingMetrics
from engine.core.request import Request
from engine.trace.events import CacheReset, KVAllocated, KVCached, KVFreed, KVLookup, KVTouched, KVUncached
from engine.trace.recorder import EventSink


class ComputedBlocks(NamedTuple):
    """A prefix found in the cache: its blocks per group, and the tokens they hold."""

    blocks: list[list[KVCacheBlock]]
    num_tokens: int


#: A block and the hash it was registered under: by now it may belong to someone else under another.
RegisteredBlock = tuple[KVCacheBlock, BlockHash]


class Allocation(NamedTuple):
    """Slots for the scheduled tokens."""

    new_block_ids: tuple[list[int], ...]
    """Per group, the blocks added to the table; shared ones not included."""
    registered: list[RegisteredBlock]
    """Blocks that got their hash on the promise that this step's forward pass fills them."""


class Shortage(NamedTuple):
    """The pool cannot serve the request now: the scheduler preempts a running one, or lets a waiting one wait."""

    needed: int
    available: int


class KVCacheManager:
    """Finds cached prefixes, allocates slots, frees."""

    def __init__(
        self, config: EngineConfig, kv_cache: KVCacheConfig, max_model_len: int, trace: EventSink | None
    ) -> None:
        self.block_size = kv_cache.block_size
        self.enable_caching = config.cache.enable_prefix_caching
        self.max_model_len = max_model_len
        self.num_lookahead_tokens = config.speculative.num_lookahead_tokens if config.speculative else 0
        self.block_pool = BlockPool(kv_cache.num_gpu_blocks, len(kv_cache.groups))
        drops_last = config.speculative is not None and config.speculative.drops_last_hit_block
        self.coordinator = KVCacheCoordinator(kv_cache.groups, self.block_size, self.block_pool, int(drops_last))
        self.req_to_block_hashes: dict[int, list[BlockHash]] = {}
        """Those of its full blocks, by serial: begun by `hash_prompt`, extended where they are needed."""
        self._looked_up: set[int] = set()
        """Serials whose hashes the trace has."""
        self._hash_algo = config.cache.prefix_caching_hash_algo
        self._none_hash = bytes.fromhex(kv_cache.none_hash)
        self.caching_metrics = CachingMetrics()
        self.nothing_computed = ComputedBlocks([[] for _ in kv_cache.groups], 0)
        self._nothing_new = Allocation(tuple([] for _ in kv_cache.groups), [])
        self._trace = trace

    def hash_prompt(self, request: Request) -> None:
        """Hash the blocks of a request that joins: at once, so that no step is kept waiting for a long prompt."""
        if self.enable_caching and request.writes_prefix_cache:
            self._hashes_of(request)

    def get_computed_blocks(self, request: Request) -> ComputedBlocks:
        """The longest cached prefix of a request: whole blocks, and never all of its tokens.

        The last token is always left to compute, because its logits are what the next token is sampled from.
        """
        if not self.enable_caching:
            return self.nothing_computed
        first_time = request.serial not in self._looked_up
        hashes = self._hashes_of(request)
        blocks = self.coordinator.find_longest_cache_hit(hashes, request.num_tokens - 1)
        found = ComputedBlocks(blocks, len(blocks[0]) * self.block_size)
        if self._trace is not None:
            self._looked_up.add(request.serial)
            self._trace.emit(
                KVLookup(
                    request=request.serial,
                    hashes=[str(block_hash) for block_hash in hashes] if first_time else None,
                    num_queried_tokens=request.num_tokens,
                    num_hit_tokens=found.num_tokens,
                    block_ids=[_ids(group) for group in blocks],
                )
            )
        return found

    def allocate_slots(
        self, request: Request, num_new_tokens: int, computed: ComputedBlocks | None = None, *, cache: bool = True
    ) -> Allocation | Shortage:
        """Give the next `num_new_tokens` tokens of a request a place, or say what is missing.

        Args:
            request: its `num_computed_tokens` have their place already.
            num_new_tokens: tokens to schedule after the computed ones.
            computed: a prefix from the cache that the request is about to share, on its admission.
            cache: give full blocks their hash now; False if their KV comes later than this step.
        """
        # Most decodes end here: the block that the request has begun has room (see `_num_placed_tokens`).
        if computed is None and request.num_computed_tokens + num_new_tokens < request.num_placed_tokens:
            return self._nothing_new
        if self.coordinator.sliding_windows:
            self._free_passed(request)
        hits, num_hit_tokens = computed or self.nothing_computed
        num_computed = request.num_computed_tokens + num_hit_tokens
        # A request on its admission drafts nothing yet, so it needs no slots to look ahead.
        num_lookahead_tokens = self.num_lookahead_tokens if request.num_computed_tokens else 0
        num_slots = min(num_computed + num_new_tokens + num_lookahead_tokens, self.max_model_len)
        # How many blocks, and are there enough?
        needed = self.coordinator.num_blocks_to_take(request.serial, num_slots, hits)
        if needed and needed > self.block_pool.num_free_blocks:
            return Shortage(needed, self.block_pool.num_free_blocks)

        if computed is not None and computed is not self.nothing_computed:
            self.caching_metrics.observe(request.num_tokens, num_hit_tokens, preempted=request.num_preemptions > 0)
        # Take them. Every hit leaves the queue before anything is popped from it, or a new block might evict a hit.
        if num_hit_tokens:
            for group, hit in zip(self.coordinator.groups, hits, strict=True):
                group.adopt(request.serial, hit)
                self._emit_touched(request, group.group, hit)
        new_block_ids = (
            tuple([self._allocate_in(group, request, num_slots) for group in self.coordinator.groups])
            if needed
            else self._nothing_new.new_block_ids
        )
        registered = self.cache_blocks(request, num_computed + num_new_tokens) if cache else []
        if cache:
            num_tokens = min(num_computed + num_new_tokens, request.num_tokens)
            request.num_placed_tokens = self._num_placed_tokens(request, num_tokens, num_computed)
        return Allocation(new_block_ids, registered)

    def block_ids(self, request: Request) -> tuple[list[int], ...]:
        """The whole block table of a request, per group."""
        return tuple(_ids(group.req_to_blocks.get(request.serial, [])) for group in self.coordinator.groups)

    def free(self, request: Request, why: str) -> None:
        """Give back all blocks of a request that was preempted or has ended."""
        request.num_placed_tokens = 0
        for group in self.coordinator.groups:
            blocks = group.free(request.serial)
            if blocks:
                self._emit_freed(request, group.group, blocks, why, by_window=False)

    def forget(self, request: Request) -> None:
        """Drop the hashes kept for a request that has ended."""
        self.req_to_block_hashes.pop(request.serial, None)
        self._looked_up.discard(request.serial)

    def unregister(self, registered: list[RegisteredBlock], why: str) -> None:
        """Take their hash from blocks whose KV will not be written after all."""
        # Once each: with steps in flight, a block may have been given up and registered again under the same hash.
        still = {block.block_id: (block, name) for block, name in registered if block.block_hash == name}
        for block, _ in still.values():
            self.block_pool.uncache(block)
        if still and self._trace is not None:
            self._trace.emit(
                KVUncached(block_ids=list(still), hashes=[str(name) for _, name in still.values()], why=why)
            )

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; refused, with False, while any block is in use."""
        blocks_in_use = self.block_pool.num_blocks_in_use
        done = self.block_pool.reset_prefix_cache()
        if done:
            self.caching_metrics.reset()
        if self._trace is not None:
            self._trace.emit(CacheReset(done=done, blocks_in_use=blocks_in_use))
        return done

    def _free_passed(self, request: Request) -> None:
        """Give back what the windows have passed; also if the request then gets nothing new, for it is in no use."""
        for group in self.coordinator.sliding_windows:
            passed = group.free_passed(request.serial, request.num_computed_tokens)
            if passed:
                self._emit_freed(request, group.group, passed, "window", by_window=True)

    def _num_placed_tokens(self, request: Request, num_tokens: int, num_computed_tokens: int) -> int:
        """Up to where a request that will have `num_tokens` computed tokens can go on in the block it has begun,
        without its window passing another block than it has by `num_computed_tokens`.

        A decode crosses into a new block once in `block_size` steps; in all others it is spared every question.
        """
        begun = num_tokens // self.block_size * self.block_size
        # The token that fills the block is one of them if nothing then has to get its hash.
        is_cached = self.enable_caching and request.writes_prefix_cache
        end = begun + self.block_size + (0 if is_cached else 1)
        placed = end - self.num_lookahead_tokens if num_tokens > begun else 0
        for group in self.coordinator.sliding_windows:
            placed = min(placed, group.next_move(num_computed_tokens) + 1)
        return placed

    def _allocate_in(self, group: CacheGroup, request: Request, num_tokens: int) -> list[int]:
        missing = group.num_blocks_missing(request.serial, num_tokens, 0)
        if not missing:
            return []
        new_blocks, evicted = group.allocate(request.serial, missing)
        block_ids = _ids(new_blocks)
        if self._trace is not None:
            self._trace.emit(
                KVAllocated(
                    request=request.serial,
                    group=group.group,
                    block_ids=block_ids,
                    evicted_block_ids=[block_id for block_id, _ in evicted],
                    evicted_hashes=[str(block_hash) for _, block_hash in evicted],
                )
            )
        return block_ids

    def cache_blocks(self, request: Request, num_tokens: int) -> list[RegisteredBlock]:
        """Give their hash to the blocks that the first `num_tokens` tokens of a request fill."""
        if not self.enable_caching or not request.writes_prefix_cache:
            return []
        # Draft tokens beyond the request's own may still be rejected: a block that holds one gets no hash.
        num_tokens = min(num_tokens, request.num_tokens)
        if self.coordinator.num_cached_blocks(request.serial) >= num_tokens // self.block_size:
            return []
        hashes = self._hashes_of(request)
        registered: list[RegisteredBlock] = []
        for group in self.coordinator.groups:
            first, blocks = group.cache_blocks(request.serial, hashes, num_tokens)
            registered += zip(blocks, hashes[first : first + len(blocks)], strict=True)
            if blocks and self._trace is not None:
                self._trace.emit(
                    KVCached(
                        request=request.serial,
                        group=group.group,
                        first_block=first,
                        block_ids=_ids(blocks),
                        hashes=[str(block_hash) for block_hash in hashes[first : first + len(blocks)]],
                        parent=(hashes[first - 1].value if first else self._none_hash).hex(),
                    )
                )
        return registered

    def _hashes_of(self, request: Request) -> list[BlockHash]:
        # Kept per request and only ever extended: a token is hashed once, however often its request is looked up.
        hashes = self.req_to_block_hashes.setdefault(request.serial, [])
        if (len(hashes) + 1) * self.block_size <= request.num_tokens:
            hashes += hash_request_tokens(
                self._hash_algo,
                self._none_hash,
                self.block_size,
                request.token_ids,
                request.cache_salt,
                hashes,
                request.lora_request,
                request.mm_features,
            )
        return hashes

    def _emit_freed(
        self, request: Request, group: int, blocks: list[KVCacheBlock], why: str, *, by_window: bool
    ) -> None:
        if self._trace is not None:
            self._trace.emit(
                KVFreed(
                    request=request.serial,
                    group=group,
                    block_ids=_ids(blocks),
                    ref_counts=[block.ref_count for block in blocks],
                    why=why,
                    by_window=by_window,
                )
            )

    def _emit_touched(self, request: Request, group: int, blocks: list[KVCacheBlock]) -> None:
        if self._trace is not None:
            self._trace.emit(
                KVTouched(
                    request=request.serial,
                    group=group,
                    block_ids=_ids(blocks),
                    ref_counts=[block.ref_count for block in blocks],
                )
            )


def _ids(blocks: list[KVCacheBlock]) -> list[int]:
    return [block.block_id for block in blocks]
