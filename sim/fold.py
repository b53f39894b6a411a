"""What each event changes in a `State`: one function per type, which writes down what the event says.

A ValueError is a fact that cannot be, in words that complete "event 7, kv.freed, cannot be: ".
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.automaton import Automaton
from engine.core.messages import RequestStatus
from engine.trace import events as ev
from sim.plan import PlanState
from sim.pool import NULL_BLOCK, Origin
from sim.request_state import RequestState

if TYPE_CHECKING:
    from sim.state import State


def _living(state: State, serial: int) -> RequestState:
    """The request of a serial, to be changed: one that has ended is shared by every copy of the state."""
    request = state.request(serial)
    if request.ended:
        raise ValueError(f"{request.name} ended in step {request.finish_step}")
    return request


def _late(state: State, serial: int) -> RequestState:
    """The request of a serial, to be changed even after its end: then in a copy of its own."""
    request = state.request(serial)
    if request.ended:
        state.requests[serial] = request = request.copy()
    return request


# --- request ----------------------------------------------------------------------------------------------


def _request_added(state: State, event: ev.RequestAdded) -> None:
    if event.request in state.requests:
        raise ValueError(f"r{event.request} has been added before")
    state.requests[event.request] = RequestState(
        serial=event.request,
        request_id=event.request_id,
        status=RequestStatus.WAITING,
        prompt_token_ids=event.prompt_token_ids,
        sampling_params=event.sampling_params,
        eos_token_ids=event.eos_token_ids,
        priority=event.priority,
        cache_salt=event.cache_salt,
        lora_request=event.lora_request,
        mm_features=event.mm_features,
        grammar=event.grammar,
        arrival_step=event.step,
        block_ids=[[] for _ in range(state.num_groups)],
    )
    _enqueue(state, event.request)


def _request_aborted(state: State, event: ev.RequestAborted) -> None:
    for serial in event.requests:
        request = state.request(serial)
        if not request.finished:
            request.abort_cause = event.cause


def _request_status(state: State, event: ev.RequestStatusChanged) -> None:
    request = _living(state, event.request)
    if event.old is not None and event.old != request.status.value:
        raise ValueError(f"{request.name} was {event.old}, but it is {request.status.value}")
    old, request.status = request.status, RequestStatus(event.new)
    if old is RequestStatus.RUNNING and request.status is not RequestStatus.RUNNING:
        _leave(state.running, "running", event.request)
    if request.status is RequestStatus.RUNNING and old is not RequestStatus.RUNNING:
        _leave(state.waiting, "waiting", event.request)
        state.running.append(event.request)
    elif request.status is RequestStatus.PREEMPTED:
        if old is not RequestStatus.RUNNING:
            raise ValueError(f"{request.name} is preempted, but it was {old.value}")
        _enqueue(state, event.request, preempted=True)
    elif request.finished and old is not RequestStatus.RUNNING:
        _leave(state.waiting, "waiting", event.request)
    elif request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
        request.receiving = True
    elif old is RequestStatus.WAITING_FOR_REMOTE_KVS:
        request.num_computed_tokens = request.num_hit_tokens + request.num_remote_tokens


def _enqueue(state: State, serial: int, *, preempted: bool = False) -> None:
    if state.policy == "priority":
        bisect.insort(state.waiting, serial, key=lambda other: (state.requests[other].priority, other))
    elif preempted:
        state.waiting.insert(0, serial)
    else:
        state.waiting.append(serial)


def _leave(queue: list[int], name: str, serial: int) -> None:
    if serial not in queue:
        raise ValueError(f"r{serial} leaves the {name} queue, in which it is not")
    queue.remove(serial)


def _request_finished(state: State, event: ev.RequestFinished) -> None:
    request = _living(state, event.request)
    if not request.finished:
        raise ValueError(f"{request.name} has ended, but its status is {request.status.value}")
    request.finish_reason = event.finish_reason
    request.stop_reason = event.stop_reason
    request.finish_step = event.step


def _token_pieces(state: State, event: ev.TokenPieces) -> None:
    state.pieces.update(zip(event.token_ids, event.pieces, strict=True))


def _output_text(state: State, event: ev.OutputText) -> None:
    request = _late(state, event.request)  # the frontend reads the last tokens after the core has ended the request
    request.text += event.delta
    request.stop_string = event.stop or request.stop_string


# --- step -------------------------------------------------------------------------------------------------


def _step_started(state: State, event: ev.StepStarted) -> None:
    state.plan = PlanState.of(event)


def _planning(state: State) -> PlanState:
    if state.plan is None or state.plan.complete:
        raise ValueError("no step is being planned")
    return state.plan


def _schedule_request(state: State, event: ev.ScheduleRequest) -> None:
    request, plan = _living(state, event.request), _planning(state)
    if request.status is not RequestStatus.RUNNING:
        raise ValueError(f"{request.name} gets tokens, but it is {request.status.value}")
    plan.rows[event.request] = event
    plan.budget_left = event.budget_left
    if event.admission == "new":
        request.num_cached_tokens = event.num_cached_tokens + event.num_remote_tokens
    request.num_computed_tokens = event.num_computed_tokens
    if request.first_scheduled_step is None:
        request.first_scheduled_step = event.step


def _schedule_skipped(state: State, event: ev.ScheduleSkipped) -> None:
    _planning(state).skipped.append(event)


def _schedule_preempted(state: State, event: ev.SchedulePreempted) -> None:
    request, plan = _living(state, event.victim), _planning(state)
    if event.was_scheduled != (event.victim in plan.rows):
        raise ValueError(f"{request.name} {'has no' if event.was_scheduled else 'has a'} row in the plan")
    if event.was_scheduled:
        plan.take_back(event.victim)
    plan.preempted.append(event.victim)
    request.num_preemptions += 1
    request.num_computed_tokens = request.num_remote_tokens = 0
    request.draft_token_ids = []


def _step_scheduled(state: State, event: ev.StepScheduled) -> None:
    plan = _planning(state)
    for serial, num_tokens in zip(event.requests, event.num_scheduled_tokens, strict=True):
        request = _living(state, serial)
        request.num_computed_tokens += num_tokens
        request.draft_token_ids = []
    plan.budget_left, plan.released, plan.complete = event.budget_left, event.released, True
    if event.requests:
        state.in_flight[event.step] = plan


def _step_output(state: State, event: ev.StepOutput) -> None:
    _land(state, event.step)
    drafts = event.draft_token_ids or [[] for _ in event.requests]
    state.proposed = dict(zip(event.requests, drafts, strict=True))
    for serial, why in (event.errors or {}).items():
        if not state.request(serial).ended:
            state.request(serial).failure = why


def _executor_failed(state: State, event: ev.ExecutorFailed) -> None:
    for serial in _land(state, event.step).rows:
        if not state.request(serial).ended:
            state.request(serial).failure = event.why


def _land(state: State, step: int) -> PlanState:
    plan = state.in_flight.pop(step, None)
    if plan is None:
        raise ValueError(f"step {step} is not in flight")
    return plan


def _update_request(state: State, event: ev.UpdateRequest) -> None:
    if event.dropped is not None:
        return
    request = _living(state, event.request)
    if event.appended and request.first_token_step is None:
        request.first_token_step = event.step
    request.output_token_ids.extend(event.appended)
    request.num_computed_tokens = event.num_computed_tokens
    if request.status is RequestStatus.RUNNING:
        request.draft_token_ids = state.proposed.pop(event.request, [])


# --- grammar ----------------------------------------------------------------------------------------------


def _grammar_ready(state: State, event: ev.GrammarReady) -> None:
    request = _living(state, event.request)
    request.automaton = event.automaton or _automaton_of_equal(state, request)
    request.automaton_state = None if request.automaton is None else 0


def _automaton_of_equal(state: State, request: RequestState) -> Automaton | None:
    """What an earlier request with the same grammar was drawn as: the trace says it once."""
    earlier = (each for each in state.requests.values() if each.grammar == request.grammar)
    return next((each.automaton for each in earlier if each.automaton is not None), None)


def _grammar_advanced(state: State, event: ev.GrammarAdvanced) -> None:
    if event.after:
        _living(state, event.request).automaton_state = event.after[-1]


def _grammar_failed(state: State, event: ev.GrammarFailed) -> None:
    _living(state, event.request).failure = event.why


# --- KV cache ---------------------------------------------------------------------------------------------


def _table(state: State, request: RequestState, group: int) -> list[int]:
    if not 0 <= group < state.num_groups:
        raise ValueError(f"there is no KV cache group {group}")
    return request.block_ids[group]


def _kv_lookup(state: State, event: ev.KVLookup) -> None:
    request = _living(state, event.request)
    request.num_hit_tokens, request.num_remote_tokens = event.num_hit_tokens, 0
    if event.hashes is not None:
        request.block_hashes = event.hashes


def _kv_allocated(state: State, event: ev.KVAllocated) -> None:
    table = _table(state, _living(state, event.request), event.group)
    for block_id, block_hash in zip(event.evicted_block_ids, event.evicted_hashes, strict=True):
        _known(state, block_id)
        state.pool.uncache(block_id, block_hash)
    for block_id in event.block_ids:
        state.pool.hand_out(block_id, event.request)
    table.extend(event.block_ids)


def _kv_touched(state: State, event: ev.KVTouched) -> None:
    table = _table(state, _living(state, event.request), event.group)
    for block_id, ref_count in zip(event.block_ids, event.ref_counts, strict=True):
        _known(state, block_id)
        if block_id != NULL_BLOCK:
            state.pool.share(block_id, event.request, ref_count)
    table.extend(event.block_ids)


def _kv_cached(state: State, event: ev.KVCached) -> None:
    parent = event.parent
    for place, (block_id, block_hash) in enumerate(zip(event.block_ids, event.hashes, strict=True), event.first_block):
        _known(state, block_id)
        state.pool.cache(block_id, block_hash, Origin(event.request, event.group, place, parent))
        parent = block_hash


def _kv_uncached(state: State, event: ev.KVUncached) -> None:
    for block_id, block_hash in zip(event.block_ids, event.hashes, strict=True):
        _known(state, block_id)
        state.pool.uncache(block_id, block_hash)


def _config_changed(state: State, event: ev.ConfigChanged) -> None:
    state.scheduler = event.scheduler


def _cache_reset(state: State, event: ev.CacheReset) -> None:
    if event.done:
        state.pool.forget_prefixes()


def _kv_freed(state: State, event: ev.KVFreed) -> None:
    request = _late(state, event.request)
    table = _table(state, request, event.group)
    for block_id, ref_count in zip(event.block_ids, event.ref_counts, strict=True):
        _known(state, block_id)
        state.pool.give_up(block_id, event.request, ref_count)
        table[table.index(block_id)] = NULL_BLOCK
    if not event.by_window:  # the request left; where a window moved on, the places stay
        table.clear()
    if not (request.holds_blocks or request.finished or request.status is RequestStatus.RUNNING):
        request.num_computed_tokens = request.num_remote_tokens = 0


# --- KV transfer ------------------------------------------------------------------------------------------


def _kv_transfer_matched(state: State, event: ev.KVTransferMatched) -> None:
    request = _living(state, event.request)
    # As after a prefix hit, one token at least is left to compute.
    room = request.num_tokens - 1 - request.num_hit_tokens
    request.num_remote_tokens = max(0, min(event.num_tokens, room))


def _kv_transfer_finished(state: State, event: ev.KVTransferFinished) -> None:
    _living(state, event.request).sending = event.sending


def _kv_transfer_done(state: State, event: ev.KVTransferDone) -> None:
    for serial in event.finished_receiving:
        _late(state, serial).receiving = False
    for serial in event.finished_sending:
        _late(state, serial).sending = False


def _known(state: State, block_id: int) -> None:
    if not 0 <= block_id < state.pool.num_blocks:
        raise ValueError(f"there is no block {block_id}, the pool has {state.pool.num_blocks}")


FOLDS: dict[type[ev.Event], Callable[[State, Any], None]] = {
    ev.RequestAdded: _request_added,
    ev.RequestAborted: _request_aborted,
    ev.RequestStatusChanged: _request_status,
    ev.RequestFinished: _request_finished,
    ev.TokenPieces: _token_pieces,
    ev.OutputText: _output_text,
    ev.ConfigChanged: _config_changed,
    ev.StepStarted: _step_started,
    ev.ScheduleRequest: _schedule_request,
    ev.ScheduleSkipped: _schedule_skipped,
    ev.SchedulePreempted: _schedule_preempted,
    ev.StepScheduled: _step_scheduled,
    ev.StepOutput: _step_output,
    ev.ExecutorFailed: _executor_failed,
    ev.UpdateRequest: _update_request,
    ev.GrammarReady: _grammar_ready,
    ev.GrammarFailed: _grammar_failed,
    ev.GrammarAdvanced: _grammar_advanced,
    ev.KVLookup: _kv_lookup,
    ev.KVAllocated: _kv_allocated,
    ev.KVTouched: _kv_touched,
    ev.KVCached: _kv_cached,
    ev.KVUncached: _kv_uncached,
    ev.KVFreed: _kv_freed,
    ev.CacheReset: _cache_reset,
    ev.KVTransferMatched: _kv_transfer_matched,
    ev.KVTransferFinished: _kv_transfer_finished,
    ev.KVTransferDone: _kv_transfer_done,
}
