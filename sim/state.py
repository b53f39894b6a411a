"""`State`: everything the engine core knew at one moment of a trace, folded from the events before it.

The fold decides nothing. Each event states facts and `apply` writes them down; what cannot be true of the state it
meets raises `StateError`. So a state is as right as the trace, and whoever doubts the trace asks `sim.invariants`.

::

    state = State.initial(trace.header)
    for event in trace.events:
        state.apply(event)

Inside a step the order is: `step.started`, one `schedule.request` per row with the `kv.*` events that made room for
it, `step.scheduled` (tokens now count as computed), `step.output`, one `update.request` per row.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from engine.config import Policy
from engine.core.messages import RequestStatus
from engine.errors import TraceError
from engine.trace import events as ev
from sim.plan import PlanState
from sim.pool import NULL_BLOCK, BlockState, Origin, PoolState
from sim.request_state import RequestState

__all__ = ["BlockState", "PlanState", "PoolState", "RequestState", "State", "StateError"]


class StateError(TraceError):
    """An event states what cannot be: its message names the event by its seq."""

    def __init__(self, event: ev.Event, why: str) -> None:
        self.event = event
        self.why = why
        super().__init__(f"event {event.seq}, {event.__struct_config__.tag}, cannot be: {why}.")


@dataclass(slots=True)
class State:
    """A moment of a trace."""

    policy: Policy
    block_size: int
    num_groups: int
    pool: PoolState
    requests: dict[int, RequestState] = field(default_factory=dict)
    """Every request seen so far by serial, the finished ones too."""
    running: list[int] = field(default_factory=list)
    """Serials in the order in which a step looks at them."""
    waiting: list[int] = field(default_factory=list)
    """Serials in serving order: arrival with the preempted first (fcfs), or (priority, serial)."""
    plan: PlanState | None = None
    """The plan of the newest step."""
    in_flight: dict[int, PlanState] = field(default_factory=dict)
    """Plans by step whose forward pass has not been answered yet."""
    proposed: dict[int, list[int]] = field(default_factory=dict)
    """Draft tokens by serial that came back with the newest output and have not been taken in yet."""
    pieces: dict[int, bytes] = field(default_factory=dict)
    """Bytes per token id. Shared between copies: they are facts about the tokenizer, not about a moment."""
    step: int = 0
    seq: int = -1
    """The last event folded in."""

    @classmethod
    def initial(cls, header: ev.Header) -> State:
        """The core before its first event: no request, every block free."""
        return cls(
            policy=header.config.scheduler.policy,
            block_size=header.kv_cache.block_size,
            num_groups=len(header.kv_cache.groups),
            pool=PoolState.fresh(header.kv_cache.num_gpu_blocks),
        )

    def copy(self) -> State:
        """A state of its own; costs O(requests + blocks). Requests that have ended are shared, see `_late`."""
        return State(
            policy=self.policy,
            block_size=self.block_size,
            num_groups=self.num_groups,
            pool=self.pool.copy(),
            requests={serial: r if r.ended else r.copy() for serial, r in self.requests.items()},
            running=self.running.copy(),
            waiting=self.waiting.copy(),
            plan=self.plan and self.plan.copy(),
            in_flight=self.in_flight.copy(),
            proposed=self.proposed.copy(),
            pieces=self.pieces,
            step=self.step,
            seq=self.seq,
        )

    def apply(self, event: ev.Event) -> None:
        """Fold one event in.

        Raises:
            StateError: the event cannot follow the ones before it; the state is not to be used any more.
        """
        fold = _FOLDS.get(type(event))
        try:
            if fold is not None:
                fold(self, event)
        except ValueError as error:
            raise StateError(event, str(error)) from error
        self.step = event.step
        self.seq = event.seq

    def fold(self, events: Iterable[ev.Event]) -> State:
        """Fold events in, in order, and return this state."""
        for event in events:
            self.apply(event)
        return self

    def request(self, serial: int) -> RequestState:
        """The request of a serial.

        Raises:
            ValueError: no request of that serial has been added.
        """
        request = self.requests.get(serial)
        if request is None:
            raise ValueError(f"no request r{serial} has been added")
        return request

    def _living(self, serial: int) -> RequestState:
        """The request of a serial, to be changed: one that has ended is shared by every copy of the state."""
        request = self.request(serial)
        if request.ended:
            raise ValueError(f"{request.name} ended in step {request.finish_step}")
        return request

    def _late(self, serial: int) -> RequestState:
        """The request of a serial, to be changed even after its end: then in a copy of its own."""
        request = self.request(serial)
        if request.ended:
            self.requests[serial] = request = request.copy()
        return request

    def piece_text(self, token_id: int) -> str:
        """The text of a token, `�` for bytes that are part of a character, its number if it was never shown."""
        piece = self.pieces.get(token_id)
        return f"#{token_id}" if piece is None else piece.decode("utf-8", errors="replace")

    def block_token_ids(self, block_id: int) -> list[int]:
        """Token ids whose KV a block holds: by its cached content, else by the table of who holds it."""
        origin = self.pool.origins[block_id] or self._held_at(block_id)
        if origin is None:
            return []
        request = self.requests[origin.request]
        first = origin.place * self.block_size
        end = first + self.block_size
        if self.pool.hashes[block_id] is None:
            end = min(end, request.num_computed_tokens)
        return request.token_ids[first:end]

    def _held_at(self, block_id: int) -> Origin | None:
        for serial in self.pool.owners[block_id]:
            for group, table in enumerate(self.requests[serial].block_ids):
                if block_id in table:
                    return Origin(serial, group, table.index(block_id))
        return None

    # --- request ----------------------------------------------------------------------------------------------

    def _request_added(self, event: ev.RequestAdded) -> None:
        if event.request in self.requests:
            raise ValueError(f"r{event.request} has been added before")
        self.requests[event.request] = RequestState(
            serial=event.request,
            request_id=event.request_id,
            status=RequestStatus.WAITING,
            prompt_token_ids=event.prompt_token_ids,
            sampling_params=event.sampling_params,
            eos_token_ids=event.eos_token_ids,
            priority=event.priority,
            cache_salt=event.cache_salt,
            grammar=event.grammar,
            arrival_step=event.step,
            block_ids=[[] for _ in range(self.num_groups)],
        )
        self._enqueue(event.request)

    def _request_aborted(self, event: ev.RequestAborted) -> None:
        for serial in event.requests:
            request = self.request(serial)
            if not request.finished:
                request.abort_cause = event.cause

    def _request_status(self, event: ev.RequestStatusChanged) -> None:
        request = self._living(event.request)
        if event.old is not None and event.old != request.status.value:
            raise ValueError(f"{request.name} was {event.old}, but it is {request.status.value}")
        old, request.status = request.status, RequestStatus(event.new)
        if old is RequestStatus.RUNNING and request.status is not RequestStatus.RUNNING:
            self._leave(self.running, "running", event.request)
        if request.status is RequestStatus.RUNNING and old is not RequestStatus.RUNNING:
            self._leave(self.waiting, "waiting", event.request)
            self.running.append(event.request)
        elif request.status is RequestStatus.PREEMPTED:
            if old is not RequestStatus.RUNNING:
                raise ValueError(f"{request.name} is preempted, but it was {old.value}")
            self._enqueue(event.request, preempted=True)
        elif request.finished and old is not RequestStatus.RUNNING:
            self._leave(self.waiting, "waiting", event.request)
        elif request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
            request.receiving = True
        elif old is RequestStatus.WAITING_FOR_REMOTE_KVS:
            request.num_computed_tokens = request.num_hit_tokens + request.num_remote_tokens

    def _enqueue(self, serial: int, *, preempted: bool = False) -> None:
        if self.policy == "priority":
            bisect.insort(self.waiting, serial, key=lambda other: (self.requests[other].priority, other))
        elif preempted:
            self.waiting.insert(0, serial)
        else:
            self.waiting.append(serial)

    @staticmethod
    def _leave(queue: list[int], name: str, serial: int) -> None:
        if serial not in queue:
            raise ValueError(f"r{serial} leaves the {name} queue, in which it is not")
        queue.remove(serial)

    def _request_finished(self, event: ev.RequestFinished) -> None:
        request = self._living(event.request)
        if not request.finished:
            raise ValueError(f"{request.name} has ended, but its status is {request.status.value}")
        request.finish_reason = event.finish_reason
        request.stop_reason = event.stop_reason
        request.finish_step = event.step

    def _token_pieces(self, event: ev.TokenPieces) -> None:
        self.pieces.update(zip(event.token_ids, event.pieces, strict=True))

    def _output_text(self, event: ev.OutputText) -> None:
        request = self._late(event.request)  # the frontend reads the last tokens after the core has ended the request
        request.text += event.delta
        request.stop_string = event.stop or request.stop_string

    # --- step -------------------------------------------------------------------------------------------------

    def _step_started(self, event: ev.StepStarted) -> None:
        self.plan = PlanState.of(event)

    def _planning(self) -> PlanState:
        if self.plan is None or self.plan.complete:
            raise ValueError("no step is being planned")
        return self.plan

    def _schedule_request(self, event: ev.ScheduleRequest) -> None:
        request, plan = self._living(event.request), self._planning()
        if request.status is not RequestStatus.RUNNING:
            raise ValueError(f"{request.name} gets tokens, but it is {request.status.value}")
        plan.rows[event.request] = event
        plan.budget_left = event.budget_left
        if event.admission == "new":
            request.num_cached_tokens = event.num_cached_tokens + event.num_remote_tokens
        request.num_computed_tokens = event.num_computed_tokens
        if request.first_scheduled_step is None:
            request.first_scheduled_step = event.step

    def _schedule_skipped(self, event: ev.ScheduleSkipped) -> None:
        self._planning().skipped.append(event)

    def _schedule_preempted(self, event: ev.SchedulePreempted) -> None:
        request, plan = self._living(event.victim), self._planning()
        if event.was_scheduled != (event.victim in plan.rows):
            raise ValueError(f"{request.name} {'has no' if event.was_scheduled else 'has a'} row in the plan")
        if event.was_scheduled:
            plan.take_back(event.victim)
        plan.preempted.append(event.victim)
        request.num_preemptions += 1
        request.num_computed_tokens = 0
        request.draft_token_ids = []

    def _step_scheduled(self, event: ev.StepScheduled) -> None:
        plan = self._planning()
        for serial, num_tokens in zip(event.requests, event.num_scheduled_tokens, strict=True):
            request = self._living(serial)
            request.num_computed_tokens += num_tokens
            request.draft_token_ids = []
        plan.budget_left, plan.released, plan.complete = event.budget_left, event.released, True
        if event.requests:
            self.in_flight[event.step] = plan

    def _step_output(self, event: ev.StepOutput) -> None:
        self._land(event.step)
        drafts = event.draft_token_ids or [[] for _ in event.requests]
        self.proposed = dict(zip(event.requests, drafts, strict=True))

    def _executor_failed(self, event: ev.ExecutorFailed) -> None:
        for serial in self._land(event.step).rows:
            if not self.request(serial).ended:
                self.request(serial).failure = event.why

    def _land(self, step: int) -> PlanState:
        plan = self.in_flight.pop(step, None)
        if plan is None:
            raise ValueError(f"step {step} is not in flight")
        return plan

    def _update_request(self, event: ev.UpdateRequest) -> None:
        if event.dropped is not None:
            return
        request = self._living(event.request)
        if event.appended and request.first_token_step is None:
            request.first_token_step = event.step
        request.output_token_ids.extend(event.appended)
        request.num_computed_tokens = event.num_computed_tokens
        if request.status is RequestStatus.RUNNING:
            request.draft_token_ids = self.proposed.pop(event.request, [])

    # --- grammar ----------------------------------------------------------------------------------------------

    def _grammar_failed(self, event: ev.GrammarFailed) -> None:
        self._living(event.request).failure = event.why

    # --- KV cache ---------------------------------------------------------------------------------------------

    def _table(self, request: RequestState, group: int) -> list[int]:
        if not 0 <= group < self.num_groups:
            raise ValueError(f"there is no KV cache group {group}")
        return request.block_ids[group]

    def _kv_lookup(self, event: ev.KVLookup) -> None:
        request = self._living(event.request)
        request.num_hit_tokens, request.num_remote_tokens = event.num_hit_tokens, 0
        if event.hashes is not None:
            request.block_hashes = event.hashes

    def _kv_allocated(self, event: ev.KVAllocated) -> None:
        table = self._table(self._living(event.request), event.group)
        for block_id, block_hash in zip(event.evicted_block_ids, event.evicted_hashes, strict=True):
            self._known(block_id)
            self.pool.uncache(block_id, block_hash)
        for block_id in event.block_ids:
            self.pool.hand_out(block_id, event.request)
        table.extend(event.block_ids)

    def _kv_touched(self, event: ev.KVTouched) -> None:
        table = self._table(self._living(event.request), event.group)
        for block_id, ref_count in zip(event.block_ids, event.ref_counts, strict=True):
            self._known(block_id)
            if block_id != NULL_BLOCK:
                self.pool.share(block_id, event.request, ref_count)
        table.extend(event.block_ids)

    def _kv_cached(self, event: ev.KVCached) -> None:
        for place, (block_id, block_hash) in enumerate(
            zip(event.block_ids, event.hashes, strict=True), event.first_block
        ):
            self._known(block_id)
            self.pool.cache(block_id, block_hash, Origin(event.request, event.group, place))

    def _kv_uncached(self, event: ev.KVUncached) -> None:
        for block_id, block_hash in zip(event.block_ids, event.hashes, strict=True):
            self._known(block_id)
            self.pool.uncache(block_id, block_hash)

    def _cache_reset(self, event: ev.CacheReset) -> None:
        if event.done:
            self.pool.forget_prefixes()

    def _kv_freed(self, event: ev.KVFreed) -> None:
        request = self._late(event.request)
        table = self._table(request, event.group)
        for block_id, ref_count in zip(event.block_ids, event.ref_counts, strict=True):
            self._known(block_id)
            self.pool.give_up(block_id, event.request, ref_count)
            table[table.index(block_id)] = NULL_BLOCK
        if not event.by_window:  # the request left; where a window moved on, the places stay
            table.clear()
        if not (request.holds_blocks or request.finished or request.status is RequestStatus.RUNNING):
            request.num_computed_tokens = 0

    # --- KV transfer ------------------------------------------------------------------------------------------

    def _kv_transfer_matched(self, event: ev.KVTransferMatched) -> None:
        request = self._living(event.request)
        # As after a prefix hit, one token at least is left to compute.
        room = request.num_tokens - 1 - request.num_hit_tokens
        request.num_remote_tokens = max(0, min(event.num_tokens, room))

    def _kv_transfer_finished(self, event: ev.KVTransferFinished) -> None:
        self._living(event.request).sending = event.sending

    def _kv_transfer_done(self, event: ev.KVTransferDone) -> None:
        for serial in event.finished_receiving:
            self._late(serial).receiving = False
        for serial in event.finished_sending:
            self._late(serial).sending = False

    def _known(self, block_id: int) -> None:
        if not 0 <= block_id < self.pool.num_blocks:
            raise ValueError(f"there is no block {block_id}, the pool has {self.pool.num_blocks}")


_FOLDS: dict[type[ev.Event], Callable[[State, Any], None]] = {
    ev.RequestAdded: State._request_added,
    ev.RequestAborted: State._request_aborted,
    ev.RequestStatusChanged: State._request_status,
    ev.RequestFinished: State._request_finished,
    ev.TokenPieces: State._token_pieces,
    ev.OutputText: State._output_text,
    ev.StepStarted: State._step_started,
    ev.ScheduleRequest: State._schedule_request,
    ev.ScheduleSkipped: State._schedule_skipped,
    ev.SchedulePreempted: State._schedule_preempted,
    ev.StepScheduled: State._step_scheduled,
    ev.StepOutput: State._step_output,
    ev.ExecutorFailed: State._executor_failed,
    ev.UpdateRequest: State._update_request,
    ev.GrammarFailed: State._grammar_failed,
    ev.KVLookup: State._kv_lookup,
    ev.KVAllocated: State._kv_allocated,
    ev.KVTouched: State._kv_touched,
    ev.KVCached: State._kv_cached,
    ev.KVUncached: State._kv_uncached,
    ev.KVFreed: State._kv_freed,
    ev.CacheReset: State._cache_reset,
    ev.KVTransferMatched: State._kv_transfer_matched,
    ev.KVTransferFinished: State._kv_transfer_finished,
    ev.KVTransferDone: State._kv_transfer_done,
}
