"""The block pool: nothing is lost, nothing is counted wrong, and blocks come and go at the right ends."""

from __future__ import annotations

from itertools import islice

from engine.trace import events as ev
from sim.invariants.invariant import Invariant, Sentences, after, before
from sim.pool import NULL_BLOCK
from sim.state import State

_MOVED = (ev.KVAllocated, ev.KVTouched, ev.KVFreed)


class BlockConservation(Invariant):
    """Counts the blocks in use on its own, by what the events say of reference counts."""

    name = "block conservation"
    statement = "In use + free + the null block = the blocks of the pool, and the core counts the same free ones."

    def __init__(self, header: ev.Header) -> None:
        super().__init__(header)
        self._in_use: set[int] = set()

    @after(*_MOVED)
    def conserved(self, state: State, event: ev.KVAllocated | ev.KVTouched | ev.KVFreed) -> Sentences:
        ref_counts = [1] * len(event.block_ids) if isinstance(event, ev.KVAllocated) else event.ref_counts
        for block_id, ref_count in zip(event.block_ids, ref_counts, strict=True):
            if ref_count > 0 and block_id != NULL_BLOCK:
                self._in_use.add(block_id)
            else:
                self._in_use.discard(block_id)
        in_use, free, total = len(self._in_use), state.pool.num_free, state.pool.num_blocks
        if in_use + free + 1 != total:
            yield f"{in_use} blocks in use + {free} free + 1 null block are not the {total} of the pool"

    @after(ev.StepStarted, ev.StepScheduled)
    def same_count(self, state: State, event: ev.StepStarted | ev.StepScheduled) -> Sentences:
        if event.free_blocks != state.pool.num_free:
            yield f"the core counts {event.free_blocks} free blocks, free_block_queue holds {state.pool.num_free}"


class ReferenceCounts(Invariant):
    """Block tables against counts."""

    name = "reference counts"
    statement = "The reference count of a block is the number of block tables that hold it."

    @after(*_MOVED)
    def counted(self, state: State, event: ev.KVAllocated | ev.KVTouched | ev.KVFreed) -> Sentences:
        for block_id in event.block_ids:
            yield from _miscounted(block_id, state.pool.ref_counts[block_id], len(state.pool.owners[block_id]))

    def audit(self, state: State) -> Sentences:
        tables = [0] * state.pool.num_blocks
        for request in state.requests.values():
            for table in request.block_ids:
                for block_id in table:
                    tables[block_id] += block_id != NULL_BLOCK
        for block_id, ref_count in enumerate(state.pool.ref_counts):
            yield from _miscounted(block_id, ref_count, tables[block_id])


def _miscounted(block_id: int, ref_count: int, num_tables: int) -> Sentences:
    if ref_count != num_tables:
        yield f"block {block_id} has reference count {ref_count}, but {num_tables} block tables hold it"


class FreeQueue(Invariant):
    """Membership of the queue."""

    name = "free queue"
    statement = "free_block_queue holds exactly the blocks with reference count 0, and never the null block."

    @after(*_MOVED)
    def moved(self, state: State, event: ev.KVAllocated | ev.KVTouched | ev.KVFreed) -> Sentences:
        for block_id in event.block_ids:
            yield from self._misplaced(state, block_id)

    def audit(self, state: State) -> Sentences:
        for block_id in range(state.pool.num_blocks):
            yield from self._misplaced(state, block_id)

    @staticmethod
    def _misplaced(state: State, block_id: int) -> Sentences:
        queued, ref_count = block_id in state.pool.free_block_queue, state.pool.ref_counts[block_id]
        if queued and block_id == NULL_BLOCK:
            yield "the null block is in free_block_queue"
        elif block_id != NULL_BLOCK and queued != (ref_count == 0):
            yield f"block {block_id} with reference count {ref_count} is {'' if queued else 'not '}in free_block_queue"


class HandedOutFromTheHead(Invariant):
    """Eviction order is LRU because of this and of `FreedTailFirst`."""

    name = "handed out from the head"
    statement = "Blocks leave free_block_queue at its head: the one freed longest ago goes first."

    @before(ev.KVAllocated)
    def head(self, state: State, event: ev.KVAllocated) -> Sentences:
        head = list(islice(state.pool.free_block_queue, len(event.block_ids)))
        if event.block_ids != head:
            yield f"r{event.request} got blocks {event.block_ids}, the head of free_block_queue was {head}"


class FreedTailFirst(Invariant):
    """The end of a prompt is less likely to be asked for again than its beginning, so it is evicted first."""

    name = "freed tail first"
    statement = "A request gives up its blocks from the end of its block table backwards."

    @before(ev.KVFreed)
    def backwards(self, state: State, event: ev.KVFreed) -> Sentences:
        table, given_up = state.requests[event.request].block_ids[event.group], set(event.block_ids)
        backwards = [block_id for block_id in reversed(table) if block_id in given_up]
        if event.block_ids != backwards:
            yield f"r{event.request} gave up {event.block_ids}, backwards in its block table stands {backwards}"

    @before(ev.KVFreed)
    def all_of_them(self, state: State, event: ev.KVFreed) -> Sentences:
        table, gone = state.requests[event.request].block_ids[event.group], {NULL_BLOCK, *event.block_ids}
        left = [block_id for block_id in table if block_id not in gone]
        if left and not event.by_window:
            yield f"r{event.request} gave up {event.block_ids} and kept {left}: who leaves gives up all at once"


class PassedByTheWindow(Invariant):
    """A running request gives up blocks for no other reason."""

    name = "passed by the window"
    statement = "A request that runs on gives up just the blocks that lie wholly before its sliding window."

    @before(ev.KVFreed)
    def passed(self, state: State, event: ev.KVFreed) -> Sentences:
        window = self.header.kv_cache.groups[event.group].sliding_window
        if not event.by_window:
            return
        if window is None:
            yield f"r{event.request} gave up {event.block_ids} by its window, but group {event.group} has none"
            return
        request = state.requests[event.request]
        table, first_seen = request.block_ids[event.group], request.num_computed_tokens - window + 1
        passed = [block_id for block_id in table[: max(0, first_seen) // state.block_size] if block_id != NULL_BLOCK]
        if sorted(event.block_ids) != sorted(passed):
            yield f"the window of {request.name} has passed {passed}, given up were {event.block_ids}"


class Evicted(Invariant):
    """A block keeps its hash until it is handed out again, and loses it then."""

    name = "evicted when handed out"
    statement = "A cached block that is handed out loses its hash, and no other block does."

    @before(ev.KVAllocated)
    def evicted(self, state: State, event: ev.KVAllocated) -> Sentences:
        hashes = state.pool.hashes
        cached = {block_id: hashes[block_id] for block_id in event.block_ids if hashes[block_id] is not None}
        evicted = dict(zip(event.evicted_block_ids, event.evicted_hashes, strict=True))
        if cached != evicted:
            yield f"of the blocks handed out {list(cached)} were cached, but {list(evicted)} lost their hash"


BLOCK_INVARIANTS: tuple[type[Invariant], ...] = (
    BlockConservation,
    ReferenceCounts,
    FreeQueue,
    HandedOutFromTheHead,
    FreedTailFirst,
    PassedByTheWindow,
    Evicted,
)
