"""The situations that a run must have reached: a fuzzer that never gets anywhere finds nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from engine.core.messages import RequestStatus
from engine.trace import events as ev
from sim.state import State

_Recognise = Callable[[State, Any], Iterator[str]]

#: How often a situation must be seen in a million steps: about a tenth of what is usual. Below it, it no longer
#: happens as it should.
MINIMUM = {
    "prompt computed in chunks": 50_000,
    "block of a whole prompt computed again for its last token": 2_000,
    "cached prefix shared while its owner runs": 4_000,
    "freed block revived": 6_000,
    "cached block evicted": 40_000,
    "duplicate full blocks": 7_500,
    "pool exactly full": 15_000,
    "request preempted": 6_000,
    "several victims in a step": 450,
    "victim already scheduled in this step": 60,
    "hashes of a same-step victim withdrawn": 20,
    "victim is the one that needed blocks": 3_000,
    "output of a preempted request": 750,
    "output dropped after resuming": 1_500,
    "abort in flight": 500,
    "abort while waiting": 2_500,
    "id used again while its last owner is in flight": 500,
    "waiting for a grammar": 2_000,
    "grammar failed": 350,
    "waiting for remote KV": 2_250,
    "row that begins on remote KV": 1_000,
    "KV reclaimed from a waiting request": 100,
    "blocks held for a connector after the end": 1_250,
    "several skipped requests in a step": 750,
    "blocks given up as a window moved on": 2_500,
    "forward pass failed": 500,
    "forward pass failed with steps in flight behind it": 200,
    "drafts accepted": 4_000,
    "draft rollback across a block boundary": 2_000,
    "drafts cut by max_model_len": 750,
    "output cut behind a stop": 1_000,
    "stopped by a token": 1_500,
    "ended by length": 12_500,
    "reset refused": 750,
    "reset done": 150,
}

_TOO_FEW_STEPS = 10_000


class Situations:
    """Counts situations from the events, each with the state that it meets."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._recognise: dict[type[ev.Event], _Recognise] = {
            ev.RequestAdded: _added,
            ev.RequestAborted: _aborted,
            ev.RequestFinished: _finished,
            ev.GrammarFailed: _grammar_failed,
            ev.ScheduleRequest: _scheduled,
            ev.ScheduleSkipped: _skipped,
            ev.SchedulePreempted: _preempted,
            ev.StepScheduled: _planned,
            ev.ExecutorFailed: _failed,
            ev.UpdateRequest: _updated,
            ev.KVLookup: _looked_up,
            ev.KVAllocated: _allocated,
            ev.KVTouched: _touched,
            ev.KVCached: _cached,
            ev.KVUncached: _uncached,
            ev.KVFreed: _freed,
            ev.KVHeld: _held,
            ev.CacheReset: _reset,
        }

    def see(self, state: State, event: ev.Event) -> None:
        """Count what an event shows; the state has not taken it in yet."""
        recognise = self._recognise.get(type(event))
        if recognise is not None:
            for name in recognise(state, event):
                self.counts[name] += 1

    def missing(self, num_steps: int) -> list[str]:
        """Situations seen less often than so many steps must show them."""
        return [name for name in MINIMUM if self.counts[name] < required(name, num_steps)]


def required(name: str, num_steps: int) -> int:
    """How often a situation must be seen in so many steps; the first few are too few for the dice to come out even."""
    return MINIMUM[name] * max(0, num_steps - _TOO_FEW_STEPS) // 1_000_000


def _in_flight(state: State, serial: int) -> bool:
    return any(serial in plan.rows for plan in state.in_flight.values())


def _added(state: State, event: ev.RequestAdded) -> Iterator[str]:
    for plan in state.in_flight.values():
        if any(state.requests[serial].request_id == event.request_id for serial in plan.rows):
            yield "id used again while its last owner is in flight"
            return


def _aborted(state: State, event: ev.RequestAborted) -> Iterator[str]:
    for serial in event.requests:
        if _in_flight(state, serial):
            yield "abort in flight"
        elif state.requests[serial].status is not RequestStatus.RUNNING:
            yield "abort while waiting"


def _finished(state: State, event: ev.RequestFinished) -> Iterator[str]:
    if event.finish_reason == "stop":
        yield "stopped by a token"
    elif event.finish_reason == "length":
        yield "ended by length"


def _grammar_failed(state: State, event: ev.GrammarFailed) -> Iterator[str]:
    yield "grammar failed"


def _scheduled(state: State, event: ev.ScheduleRequest) -> Iterator[str]:
    if event.truncated_by in ("token_budget", "long_prefill_token_threshold"):
        yield "prompt computed in chunks"
    elif event.truncated_by == "max_model_len":
        yield "drafts cut by max_model_len"
    if event.num_remote_tokens:
        yield "row that begins on remote KV"


def _skipped(state: State, event: ev.ScheduleSkipped) -> Iterator[str]:
    if event.reason == "waiting_for_grammar":
        yield "waiting for a grammar"
        if event.behind:
            yield "several skipped requests in a step"
    elif event.reason == "waiting_for_remote_kvs":
        yield "waiting for remote KV"
        if event.behind:
            yield "several skipped requests in a step"


def _preempted(state: State, event: ev.SchedulePreempted) -> Iterator[str]:
    yield "request preempted"
    if event.was_scheduled:
        yield "victim already scheduled in this step"
    if event.victim == event.for_request:
        yield "victim is the one that needed blocks"
    if state.plan is not None and len(state.plan.preempted) == 1:
        yield "several victims in a step"


def _planned(state: State, event: ev.StepScheduled) -> Iterator[str]:
    if event.free_blocks == 0:
        yield "pool exactly full"


def _failed(state: State, event: ev.ExecutorFailed) -> Iterator[str]:
    yield "forward pass failed"
    if len(state.in_flight) > 1:
        yield "forward pass failed with steps in flight behind it"


def _updated(state: State, event: ev.UpdateRequest) -> Iterator[str]:
    request = state.requests[event.request]
    if event.dropped == "resumed":
        yield "output dropped after resuming"
    if event.appended and request.status is RequestStatus.PREEMPTED:
        yield "output of a preempted request"
    if event.num_cut:
        yield "output cut behind a stop"
    if len(event.appended) > 1:
        yield "drafts accepted"
    after, rejected = event.num_computed_tokens, event.num_rejected
    if rejected and after // state.block_size != (after + rejected) // state.block_size:
        yield "draft rollback across a block boundary"


def _looked_up(state: State, event: ev.KVLookup) -> Iterator[str]:
    size, num_tokens = state.block_size, event.num_queried_tokens
    if size > 1 and num_tokens % size == 0 and event.num_hit_tokens == num_tokens - size > 0:
        yield "block of a whole prompt computed again for its last token"


def _allocated(state: State, event: ev.KVAllocated) -> Iterator[str]:
    if event.evicted_block_ids:
        yield "cached block evicted"


def _touched(state: State, event: ev.KVTouched) -> Iterator[str]:
    if 1 in event.ref_counts:
        yield "freed block revived"
    if max(event.ref_counts) > 1:
        yield "cached prefix shared while its owner runs"


def _cached(state: State, event: ev.KVCached) -> Iterator[str]:
    if any(block_hash in state.pool.cached_block_hash_to_block for block_hash in event.hashes):
        yield "duplicate full blocks"


def _uncached(state: State, event: ev.KVUncached) -> Iterator[str]:
    if "preempted" in event.why:
        yield "hashes of a same-step victim withdrawn"


def _freed(state: State, event: ev.KVFreed) -> Iterator[str]:
    if event.by_window:
        yield "blocks given up as a window moved on"
    elif state.requests[event.request].status is RequestStatus.WAITING:
        yield "KV reclaimed from a waiting request"


def _held(state: State, event: ev.KVHeld) -> Iterator[str]:
    yield "blocks held for a connector after the end"


def _reset(state: State, event: ev.CacheReset) -> Iterator[str]:
    yield "reset done" if event.done else "reset refused"
