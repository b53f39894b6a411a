"""Which blocks a request finds, gets, fills and gives up; and KV that comes from elsewhere."""

from __future__ import annotations

from engine.core.messages import RequestStatus
from engine.trace import events as ev
from sim.pool import NULL_BLOCK
from viz.explain.telling import Said, Tellers, Telling
from viz.explain.words import count, numbers, work_on_blocks

#: A request may hold blocks in these, although it does not run: its KV came, or comes, from elsewhere.
_WITH_BLOCKS = (RequestStatus.WAITING, RequestStatus.WAITING_FOR_REMOTE_KVS)


def _looked_up(told: Telling, event: ev.KVLookup) -> Said:
    if event.num_hit_tokens:
        last = event.num_hit_tokens == event.num_queried_tokens - told.block_size
        why = "; one token at least is always computed" if last else ""
        found = f"finds {event.num_hit_tokens:,} of its {count(event.num_queried_tokens, 'token')} in the cache"
        return Said(event.request, found + why, "lookup", detail=True)
    if event.num_queried_tokens <= told.block_size:
        return Said(event.request, "too short to share: it fills no block", "lookup", detail=True)
    missing = "shares nothing: its first block is not in cached_block_hash_to_block"
    return Said(event.request, missing, "lookup", detail=True)


def _touched(told: Telling, event: ev.KVTouched) -> Said:
    revived = sum(ref_count == 1 for ref_count in event.ref_counts)
    num_blocks = len(event.block_ids) - event.block_ids.count(NULL_BLOCK)
    unseen = f"; of the {len(event.block_ids)} found, its sliding window sees only these"
    were = "its hash was" if num_blocks == 1 else "their hashes were"
    back = f", {revived} of them revived from free_block_queue" if revived else ""
    shared = f"{count(num_blocks, 'block')} shared{back}: {were} in cached_block_hash_to_block"
    shared += unseen if num_blocks < len(event.block_ids) else ""
    return Said(event.request, shared, "touch")


def _allocated(told: Telling, event: ev.KVAllocated) -> Said:
    evicted, lost = event.evicted_block_ids, ""
    if evicted:
        which = f"{'block' if len(evicted) == 1 else 'blocks'} {numbers(evicted)}"
        whose = ", whose cached content" if evicted == event.block_ids else f"; what {which} had cached"
        lost = f"{whose} is evicted"
    blocks = f"gets {count(len(event.block_ids), 'block')} from the head of free_block_queue"
    return Said(event.request, f"{blocks}: {numbers(event.block_ids)}{lost}", "new blocks", detail=not evicted)


def _cached(told: Telling, event: ev.KVCached) -> Said:
    one = len(event.block_ids) == 1
    full = f"block {event.block_ids[0]} is full" if one else f"blocks {numbers(event.block_ids)} are full"
    by = "its hash" if one else "their hashes"
    return Said(event.request, f"{full}, and can be found by {by}", "cache", detail=True)


def _uncached(told: Telling, event: ev.KVUncached) -> Said:
    whose = "block" if len(event.block_ids) == 1 else "blocks"
    return Said(None, f"{whose} {numbers(event.block_ids)} can be found no more: {event.why}", "uncache")


def _freed(told: Telling, event: ev.KVFreed) -> Said:
    given = f"gives up {count(len(event.block_ids), 'block')}"
    if event.request in told.held:
        return Said(event.request, f"{given}: the connector is done with them", "let go")
    if event.by_window:
        one = len(event.block_ids) == 1
        passed = f"its sliding window has passed {'block' if one else 'blocks'} {numbers(event.block_ids)}"
        place = f"the null block takes {'its' if one else 'their'} place"
        return Said(event.request, f"{passed}: given up, {place}", "free", detail=True)
    if told.statuses.get(event.request) in _WITH_BLOCKS:
        return Said(event.request, f"{given} while it waits: {event.why}", "reclaim")
    kept = sum(ref_count > 0 for ref_count in event.ref_counts)
    others = f"; {kept} of them {'is' if kept == 1 else 'are'} still held by others" if kept else ""
    return Said(event.request, f"{given}, tail first: {numbers(event.block_ids)}{others}", "free", detail=True)


def _reset(told: Telling, event: ev.CacheReset) -> Said:
    if event.done:
        return Said(None, "every cached prefix is forgotten", "reset")
    return Said(None, f"the cache is not reset: {count(event.blocks_in_use, 'block')} in use", "reset")


def _matched(told: Telling, event: ev.KVTransferMatched) -> Said:
    if event.num_tokens == 0:
        return Said(event.request, "no other engine has KV of it", "match", detail=True)
    how = "loaded in the background" if event.load_async else "loaded within this step"
    has = f"another engine has KV of {count(event.num_tokens, 'token')} more"
    return Said(event.request, f"{has}: {how}", "match", detail=True)


def _held_back(told: Telling, event: ev.KVHeld) -> Said:
    work = work_on_blocks(sending=event.sending, receiving=event.receiving)
    return Said(event.request, f"its blocks stay out of the pool: they are still being {work}", "hold")


TELLERS: Tellers = {
    ev.KVLookup: _looked_up,
    ev.KVTouched: _touched,
    ev.KVAllocated: _allocated,
    ev.KVCached: _cached,
    ev.KVUncached: _uncached,
    ev.KVFreed: _freed,
    ev.CacheReset: _reset,
    ev.KVTransferMatched: _matched,
    ev.KVHeld: _held_back,
}
