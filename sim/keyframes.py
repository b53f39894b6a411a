"""Keyframes: states of a trace that are kept, so that no other is folded from far away.

Of a trace in memory they are left behind by whoever folds. Of a large trace some lie in its index, written down as the
index was made: further apart, as each is as big as the pool. Where somebody has just looked a few lie close together,
for the next look is at the same step or at its neighbour.

A request that has ended changes no more and is part of every later state; so it is written once, in front of the
first keyframe that knows of its end, and shared by all behind it.
"""

from __future__ import annotations

import msgspec

from engine.trace import events as ev
from engine.trace.index import Index, IndexWriter
from sim.pool import PoolState
from sim.request_state import RequestState
from sim.state import State

#: Events between keyframes are at least this many, and at least half as many as there are blocks.
_KEYFRAME_EVENTS = 1024
#: The same of those in an index, and at least twice as many as there are blocks.
_STORED_EVENTS = 1 << 13
#: Keyframes in memory, and those of them where somebody has just looked.
_MOST_KEPT, _MOST_RECENT = 64, 6
#: With an index, how many intervals before a place that somebody asks for are kept.
_NEAR = 4


class Keyframes:
    """States by position, that is by the number of events before them; the first of all is always there.

    Args:
        header: of the trace.
        stored: those in its index.
    """

    def __init__(self, header: ev.Header, stored: StoredKeyframes | None = None) -> None:
        self.interval = max(_KEYFRAME_EVENTS, header.kv_cache.num_gpu_blocks // 2)
        self._stored = stored
        self._first = State.initial(header)
        self._kept: dict[int, State] = {}
        self._recent: dict[int, State] = {}

    def nearest(self, position: int) -> tuple[int, State]:
        """The last keyframe up to a position, and its position; not to be changed."""
        stored = 0 if self._stored is None else self._stored.before(position)
        close = position // _KEYFRAME_EVENTS * _KEYFRAME_EVENTS
        for earlier in (close, close - _KEYFRAME_EVENTS):
            state = self._recent.get(earlier)
            if state is not None:
                return earlier, state
        for earlier in range(position // self.interval * self.interval, stored, -self.interval):
            state = self._kept.get(earlier)
            if state is not None:
                return earlier, state
        if not stored or self._stored is None:
            return 0, self._first
        state = self._kept.get(stored) or self._stored.state(stored)
        _keep(self._kept, stored, state, _MOST_KEPT)
        return stored, state

    def offer(self, position: int, state: State, target: int) -> None:
        """A state that somebody has folded on the way to `target`: a copy is kept if a keyframe belongs there."""
        if position % self.interval == 0:
            # What can be folded from a stored one at any time is worth a copy only near to where somebody looks.
            near = self._stored is None or target - position <= _NEAR * self.interval
            if near and position not in self._kept:
                _keep(self._kept, position, state.copy(), _MOST_KEPT)
        elif position % _KEYFRAME_EVENTS == 0 and target - position < 2 * _KEYFRAME_EVENTS:
            _keep(self._recent, position, state.copy(), _MOST_RECENT)


def _keep(states: dict[int, State], position: int, state: State, most: int) -> None:
    # Never changed once it is there, so that several readers may fold at the same time.
    states[position] = state
    if len(states) > most:
        states.pop(next(iter(states)), None)


class _Keyframe(msgspec.Struct):
    """A state as it is written down: without the requests that have ended, and what follows from the rest."""

    state: State
    cached: list[tuple[int, ...]]
    """Values of `cached_block_hash_to_block`; the blocks themselves know their hash."""


class KeyframeWriter:
    """Writes keyframes into an index while a trace is folded from its beginning."""

    def __init__(self, header: ev.Header, index: IndexWriter) -> None:
        self.interval = max(_STORED_EVENTS, 2 * header.kv_cache.num_gpu_blocks)
        self._index = index
        self._ended: dict[int, RequestState] = {}
        self._positions: list[int] = []

    def write(self, position: int, state: State) -> None:
        """Write down the state at a position, a multiple of `interval`."""
        ended = [r for r in state.requests.values() if r.ended and self._ended.get(r.serial) is not r]
        self._ended.update((request.serial, request) for request in ended)
        self._index.write(f"ended {position}", msgspec.msgpack.encode(ended))
        keyframe = _Keyframe(_bare(state), list(state.pool.cached_block_hash_to_block.values()))
        self._index.write(f"state {position}", msgspec.msgpack.encode(keyframe))
        self._positions.append(position)

    def finish(self, pieces: dict[int, bytes]) -> None:
        """Write down which keyframes there are, and the bytes of all tokens."""
        self._index.write("keyframes", msgspec.msgpack.encode((self.interval, self._positions, pieces)))


class StoredKeyframes:
    """The keyframes in an index."""

    def __init__(self, index: Index) -> None:
        interval, positions, pieces = msgspec.msgpack.decode(
            index.section("keyframes"), type=tuple[int, list[int], dict[int, bytes]]
        )
        self._index = index
        self._interval, self._last, self._pieces = interval, max(positions, default=0), pieces
        self._ended: dict[int, list[RequestState]] = {}

    def before(self, position: int) -> int:
        """Where the last of them up to a position is; 0 if there is none."""
        return min(position // self._interval * self._interval, self._last)

    def state(self, position: int) -> State:
        """The state at the position of a keyframe."""
        keyframe = msgspec.msgpack.decode(self._index.section(f"state {position}"), type=_Keyframe)
        state, pool = keyframe.state, keyframe.state.pool
        for ids in keyframe.cached:
            block_hash = pool.hashes[ids[0]]
            assert block_hash is not None, "A block that can be found bears its hash."
            pool.cached_block_hash_to_block[block_hash] = ids
        requests = {request.serial: request for request in self._ended_before(position)} | state.requests
        state.requests = dict(sorted(requests.items()))
        state.pieces = self._pieces
        return state

    def _ended_before(self, position: int) -> list[RequestState]:
        ended: list[RequestState] = []
        for earlier in range(self._interval, position + 1, self._interval):
            if earlier not in self._ended:
                data = self._index.section(f"ended {earlier}")
                self._ended[earlier] = msgspec.msgpack.decode(data, type=list[RequestState])
            ended += self._ended[earlier]
        return ended


def _bare(state: State) -> State:
    """The state without what is written elsewhere."""
    pool = state.pool
    return State(
        scheduler=state.scheduler,
        block_size=state.block_size,
        num_groups=state.num_groups,
        pool=PoolState(pool.ref_counts, pool.hashes, pool.owners, pool.origins, pool.free_block_queue, {}),
        requests={serial: request for serial, request in state.requests.items() if not request.ended},
        running=state.running,
        waiting=state.waiting,
        plan=state.plan,
        in_flight=state.in_flight,
        proposed=state.proposed,
        step=state.step,
        seq=state.seq,
    )
