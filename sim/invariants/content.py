"""What the blocks hold: a hash that is true, and KV that was written before anybody reads it."""

from __future__ import annotations

from engine.core.kv_cache.block_hash import BlockHash, hash_request_tokens
from engine.trace import events as ev
from sim.invariants.invariant import Invariant, Sentences, after, before
from sim.pool import NULL_BLOCK
from sim.state import RequestState, State


class _HashChains:
    """The hashes of every request's full blocks, computed here from its tokens."""

    def __init__(self, header: ev.Header) -> None:
        self._algo = header.config.cache.prefix_caching_hash_algo
        self._none_hash = bytes.fromhex(header.kv_cache.none_hash)
        self._block_size = header.kv_cache.block_size
        self._chains: dict[int, list[BlockHash]] = {}

    def of(self, request: RequestState) -> list[BlockHash]:
        """Hashes of its full blocks, as many as it has tokens for by now."""
        chain = self._chains.setdefault(request.serial, [])
        if (len(chain) + 1) * self._block_size <= request.num_tokens:
            chain += hash_request_tokens(
                self._algo,
                self._none_hash,
                self._block_size,
                request.token_ids,
                request.cache_salt,
                chain,
                request.lora_request,
                request.mm_features,
            )
        return chain

    def parent(self, request: RequestState, place: int) -> str:
        """Hex of the hash before the block at `place` of the block table."""
        return (self.of(request)[place - 1].value if place else self._none_hash).hex()

    def forget(self, serial: int) -> None:
        """A request has ended."""
        self._chains.pop(serial, None)


class HashOfTokens(Invariant):
    """Computes every hash again."""

    name = "hash of its tokens"
    statement = "Only full blocks get a hash: that of their tokens, of all before them, and of their extra keys."

    def __init__(self, header: ev.Header) -> None:
        super().__init__(header)
        self._chains = _HashChains(header)

    @before(ev.KVCached)
    def hashed(self, state: State, event: ev.KVCached) -> Sentences:
        request = state.requests[event.request]
        end = event.first_block + len(event.block_ids)
        table, chain = request.block_ids[event.group], self._chains.of(request)
        if table[event.first_block : end] != event.block_ids:
            yield f"blocks {event.block_ids} are not at {event.first_block} of {request.name}'s block table"
        if end > len(chain):
            yield f"block {event.block_ids[-1]} gets a hash, but the tokens of {request.name} do not fill it"
        elif [str(block_hash) for block_hash in chain[event.first_block : end]] != event.hashes:
            yield f"the hashes of blocks {event.block_ids} are not those of the tokens of {request.name}"
        if event.parent != self._chains.parent(request, event.first_block):
            yield f"{event.parent[:8]}… is not the hash before block {event.block_ids[0]}"

    @after(ev.RequestFinished)
    def ended(self, state: State, event: ev.RequestFinished) -> Sentences:
        self._chains.forget(event.request)
        yield from ()


class NeverTheWholePrompt(Invariant):
    """The logits of the last token are what the next token is sampled from."""

    name = "never the whole prompt"
    statement = "A prefix hit leaves at least one token to compute."

    @before(ev.KVLookup)
    def left(self, state: State, event: ev.KVLookup) -> Sentences:
        num_tokens = state.requests[event.request].num_tokens
        if event.num_hit_tokens >= num_tokens:
            yield f"the hit of r{event.request} covers {event.num_hit_tokens} tokens of {num_tokens}"


class PrefixHits(Invariant):
    """Lookup, touch and admission tell of the same blocks."""

    name = "prefix hits"
    statement = "A hit is the longest run of cached blocks that bear the request's own hashes; these get shared."

    def __init__(self, header: ev.Header) -> None:
        super().__init__(header)
        self._chains = _HashChains(header)
        self._found: dict[int, ev.KVLookup] = {}
        speculative = header.config.speculative
        self._dropped = int(speculative is not None and speculative.drops_last_hit_block)
        self._windows = [group.sliding_window for group in header.kv_cache.groups]

    @before(ev.KVLookup)
    def own_hashes(self, state: State, event: ev.KVLookup) -> Sentences:
        request = state.requests[event.request]
        chain = [str(block_hash) for block_hash in self._chains.of(request)]
        if event.hashes is not None and event.hashes != chain:
            yield f"the hashes of {request.name} are not those of its tokens"
        if event.num_queried_tokens != request.num_tokens:
            yield f"{event.num_queried_tokens} tokens of {request.name} were looked up, it has {request.num_tokens}"
        for blocks in event.block_ids:
            if event.num_hit_tokens != len(blocks) * state.block_size:
                yield f"{len(blocks)} blocks found are said to hold {event.num_hit_tokens} tokens"
            for place, block_id in enumerate(blocks):
                if block_id != NULL_BLOCK and state.pool.hashes[block_id] != chain[place]:
                    yield f"block {block_id} does not bear hash {place} of {request.name}"
        self._found[event.request] = event

    @before(ev.KVLookup)
    def longest(self, state: State, event: ev.KVLookup) -> Sentences:
        request = state.requests[event.request]
        chain, num_hits = self._chains.of(request), len(event.block_ids[0]) + self._dropped
        most = (request.num_tokens - 1) // state.block_size
        if not any(self._windows):  # what is behind the first block that is not there cannot be reached
            most = min(most, num_hits + 1)
        for longer in range(num_hits + 1, most + 1):
            if all(self._suffices(state, group, chain[:longer]) for group in range(state.num_groups)):
                yield f"{num_hits} blocks were found for {request.name}, it could go on from {longer} too"

    def _suffices(self, state: State, group: int, prefix: list[BlockHash]) -> bool:
        """Whether a group can go on from a prefix: it has all blocks of it that the next token sees."""
        window, size = self._windows[group], state.block_size
        seen = prefix if window is None else prefix[-(-(-(window - 1) // size) + self._dropped) :]
        return all(self._has(state, group, str(block_hash)) for block_hash in reversed(seen))

    @staticmethod
    def _has(state: State, group: int, block_hash: str) -> bool:
        origins = (
            state.pool.origins[block_id] for block_id in state.pool.cached_block_hash_to_block.get(block_hash, ())
        )
        return any(origin is not None and origin.group == group for origin in origins)

    @before(ev.KVTouched)
    def shared(self, state: State, event: ev.KVTouched) -> Sentences:
        found = self._found.get(event.request)
        blocks = found.block_ids[event.group] if found else []
        if event.block_ids != blocks:
            yield f"r{event.request} shares blocks {event.block_ids}, its lookup found {blocks}"

    @before(ev.ScheduleRequest)
    def spared(self, state: State, event: ev.ScheduleRequest) -> Sentences:
        found = self._found.pop(event.request, None) if event.admission != "running" else None
        hit = found.num_hit_tokens if found else 0
        if event.num_cached_tokens != hit:
            yield f"r{event.request} is said to be spared {event.num_cached_tokens} tokens, its lookup found {hit}"

    @after(ev.RequestFinished)
    def ended(self, state: State, event: ev.RequestFinished) -> Sentences:
        self._chains.forget(event.request)
        self._found.pop(event.request, None)
        yield from ()


class WrittenBeforeRead(Invariant):
    """Follows every slot of the pool: handed out empty, promised by a plan, written when the step comes back."""

    name = "written before read"
    statement = "All KV that a row reads was written by an executed step, a row before it, or a KV connector."

    def __init__(self, header: ev.Header) -> None:
        super().__init__(header)
        self._written: dict[int, int] = {}  # block: slots from its start whose KV is there
        self._promised: dict[int, dict[int, int]] = {}  # the same by step, for steps in flight
        self._registered: dict[int, dict[int, str]] = {}  # blocks that got their hash in a step
        self._read: dict[int, int] = {}  # request: tokens that it is known to read rightly
        self._within_step: set[int] = set()  # requests whose KV from elsewhere is loaded in the step of their row

    @after(ev.KVAllocated)
    def handed_out(self, state: State, event: ev.KVAllocated) -> Sentences:
        for block_id in event.block_ids:
            self._written[block_id] = 0
            for promised in self._promised.values():
                promised.pop(block_id, None)
            for registered in self._registered.values():
                registered.pop(block_id, None)
        yield from ()

    @after(ev.KVFreed)
    def lost(self, state: State, event: ev.KVFreed) -> Sentences:
        if not any(state.requests[event.request].block_ids):
            self._read.pop(event.request, None)
        yield from ()

    @after(ev.KVCached)
    def registered(self, state: State, event: ev.KVCached) -> Sentences:
        self._registered.setdefault(event.step, {}).update(zip(event.block_ids, event.hashes, strict=True))
        yield from ()

    @before(ev.KVTransferMatched)
    def matched(self, state: State, event: ev.KVTransferMatched) -> Sentences:
        (self._within_step.discard if event.load_async else self._within_step.add)(event.request)
        yield from ()

    @before(ev.KVTransferDone)
    def received(self, state: State, event: ev.KVTransferDone) -> Sentences:
        for request in (state.requests[serial] for serial in event.finished_receiving):
            for table in request.block_ids if request.receiving else ():
                self._writes(self._written, table, *_remote(request))
        yield from ()

    @after(ev.StepScheduled)
    def planned(self, state: State, event: ev.StepScheduled) -> Sentences:
        self._promised[event.step] = {}
        for serial, num_tokens in zip(event.requests, event.num_scheduled_tokens, strict=True):
            request = state.requests[serial]
            start = request.num_computed_tokens - num_tokens
            for group, table in enumerate(request.block_ids):
                if serial in self._within_step:
                    self._writes(self._promised[event.step], table, *_remote(request))
                yield from self._reads(request, table, self._first_read(group, serial, start), start)
                self._writes(self._promised[event.step], table, start, start + num_tokens)
            self._read[serial] = start + num_tokens
            self._within_step.discard(serial)

    def _first_read(self, group: int, serial: int, start: int) -> int:
        # What was read before need not be looked at again: a block table is append-only while its request runs.
        window = self.header.kv_cache.groups[group].sliding_window
        return max(self._read.get(serial, 0), 0 if window is None else start - window + 1)

    def _reads(self, request: RequestState, table: list[int], first: int, end: int) -> Sentences:
        size = self.header.kv_cache.block_size
        for place in range(max(first, 0) // size, -(-end // size)):
            block_id = table[place] if place < len(table) else NULL_BLOCK
            read, there = min(size, end - place * size), self._slots_written(block_id)
            if block_id == NULL_BLOCK:
                yield f"{request.name} reads position {place * size}, for which it holds no block"
                if place >= len(table):  # nor for any behind it, and a false number may name a great many
                    return
            elif there < read:
                yield f"{request.name} reads {read} slots of block {block_id}, of which {there} are written"

    def _slots_written(self, block_id: int) -> int:
        promised = (blocks.get(block_id, 0) for blocks in self._promised.values())
        return max(self._written.get(block_id, 0), *promised)

    def _writes(self, slots: dict[int, int], table: list[int], start: int, end: int) -> None:
        size = self.header.kv_cache.block_size
        for place in range(max(start, 0) // size, min(-(-end // size), len(table))):
            slots[table[place]] = min(size, end - place * size)

    @after(ev.StepOutput)
    def executed(self, state: State, event: ev.StepOutput) -> Sentences:
        for block_id, slots in self._promised.pop(event.step, {}).items():
            self._written[block_id] = max(self._written.get(block_id, 0), slots)
        yield from self._findable(state, event.step)

    @after(ev.ExecutorFailed)
    def failed(self, state: State, event: ev.ExecutorFailed) -> Sentences:
        self._promised.pop(event.step, None)
        self._read.clear()
        yield from ()

    @before(ev.ScheduleCalled)
    def after_a_failure(self, state: State, event: ev.ScheduleCalled) -> Sentences:
        for step in [step for step in self._registered if step not in state.in_flight]:
            yield from self._findable(state, step)

    def _findable(self, state: State, step: int) -> Sentences:
        for block_id, block_hash in self._registered.pop(step, {}).items():
            there = self._written.get(block_id, 0)
            if state.pool.hashes[block_id] == block_hash and there < state.block_size:
                yield f"block {block_id} can be found by its hash, but only {there} of its slots are written"


def _remote(request: RequestState) -> tuple[int, int]:
    """The positions whose KV the connector brings: first, and past the last."""
    return request.num_hit_tokens, request.num_hit_tokens + request.num_remote_tokens


CONTENT_INVARIANTS: tuple[type[Invariant], ...] = (HashOfTokens, NeverTheWholePrompt, PrefixHits, WrittenBeforeRead)
