"""The Scheduler: the story of a step.

There is no prefill phase and no decode phase. Every request has tokens that are not computed yet, and a step gives
each as many as the token budget allows: first those that run already, then those that wait.
"""

from __future__ import annotations

from typing import Literal

from engine.config import EngineConfig, KVCacheConfig
from engine.core.kv_cache.manager import ComputedBlocks, KVCacheManager, Shortage
from engine.core.kv_transfer import NO_MATCH, KVTransferManager, RemoteMatch
from engine.core.messages import (
    EngineCoreOutput,
    ForwardFailure,
    ModelRunnerOutput,
    RequestStatus,
    SchedulerOutput,
)
from engine.core.request import Request
from engine.core.request_queue import create_request_queue
from engine.core.scheduler.admission import AdmissionGates, WaitingFor
from engine.core.scheduler.coasting import Coasting
from engine.core.scheduler.drafting import DraftingPolicy
from engine.core.scheduler.plan import Admission, StepPlan, StepsInFlight
from engine.core.scheduler.update import apply_failure, apply_output
from engine.core.scheduler.wanted import Wanted, tokens_wanted
from engine.core.seams import KVConnector
from engine.core.structured_output import StructuredOutputManager
from engine.trace.events import (
    RequestFinished,
    RequestStatusChanged,
    SchedulePreempted,
    ScheduleRequest,
    ScheduleSkipped,
    StepScheduled,
    StepStarted,
)
from engine.trace.recorder import EventSink

#: Waiting requests named in `step.started`: an event must not grow with the queue.
NUM_WAITING_NAMED = 16


class Scheduler:
    """Decides which requests run in the next step, with how many tokens each."""

    def __init__(
        self,
        config: EngineConfig,
        kv_cache: KVCacheConfig,
        max_model_len: int,
        structured_output: StructuredOutputManager,
        kv_connector: KVConnector | None,
        trace: EventSink | None,
    ) -> None:
        self.config = config.scheduler
        self.max_model_len = max_model_len
        self.kv_cache_manager = KVCacheManager(config, kv_cache, max_model_len, trace)
        self.structured_output_manager = structured_output
        self.in_flight = StepsInFlight()
        self.kv_transfer_manager = KVTransferManager(kv_connector, self.kv_cache_manager, self.in_flight, trace)
        self.admission = AdmissionGates(structured_output, self.kv_transfer_manager)
        self.drafting = DraftingPolicy(config.speculative, trace)
        self.waiting = create_request_queue(config.scheduler.policy)
        self.running: list[Request] = []
        self.step = 0
        self._released: list[int] = []
        self.trace = trace
        self.coasting: Coasting | None = None

    def add(self, request: Request) -> None:
        """Let a new request wait; a guided one for its grammar first."""
        if request.grammar is not None:
            self.structured_output_manager.grammar_init(request)
        self.kv_cache_manager.hash_prompt(request)
        self.waiting.add(request)
        self._emit_status(request, None, "added")

    def schedule(self) -> SchedulerOutput:
        """Plan the next step: running requests first, then waiting ones."""
        self.step += 1
        plan = StepPlan(self.step, self.config.max_num_batched_tokens)
        if self.trace is not None:
            self.trace.step = self.step
            self._emit_started(plan)
        self._schedule_running(plan)
        self._schedule_waiting(plan)
        return self._depart(plan)

    def update(self, output: ModelRunnerOutput | ForwardFailure) -> list[EngineCoreOutput]:
        """Take in what a step brought back: tokens are appended, and what has reached its end leaves."""
        plan = self.in_flight.land(output.step)
        self.kv_transfer_manager.step_landed(output.step)
        if isinstance(output, ForwardFailure):
            return apply_failure(self, plan, output)
        return apply_output(self, plan, output)

    def finish(self, request: Request, status: RequestStatus, why: str, stop_reason: int | str | None = None) -> None:
        """End a request: out of its queue, its blocks back to the pool (later, if a connector still uses them)."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self._released.append(request.serial)
        else:
            self.waiting.remove(request)
        self._set_status(request, status, why)
        request.stop_reason = stop_reason
        self.kv_transfer_manager.free_when_done(request, why)
        self.kv_cache_manager.forget(request)
        self.structured_output_manager.release(request)
        if self.trace is not None:
            self.trace.emit(
                RequestFinished(
                    request=request.serial,
                    status=status.value,
                    finish_reason=status.finish_reason or "",
                    stop_reason=stop_reason,
                    num_prompt_tokens=request.num_prompt_tokens,
                    num_output_tokens=request.num_output_tokens,
                    num_cached_tokens=request.num_cached_tokens or 0,
                    num_preemptions=request.num_preemptions,
                )
            )

    # --- running requests ---------------------------------------------------------------------------------------

    def _schedule_running(self, plan: StepPlan) -> None:
        """Decodes, and prefills that have begun: each gets tokens and slots; where blocks are missing, running
        ones are preempted."""
        coasting, allocate_slots, index = self.coasting, self.kv_cache_manager.allocate_slots, 0
        running = self.running if coasting is None else coasting.to_look_at(self.running, plan)
        while index < len(running):
            request = running[index]
            if plan.budget == 0:
                self._emit_skipped(request, "token_budget", behind=len(running) - index - 1)
                return
            if request.num_output_placeholders and request.awaits_its_last_token(self.max_model_len):
                index += 1
                continue
            wanted = self._tokens_wanted(request, request.num_computed_tokens, plan)
            allocation = allocate_slots(request, wanted.num_tokens)
            while isinstance(allocation, Shortage):
                if len(running) > 1 or not self._reclaim_from_waiting(request):
                    victim = self._choose_victim()
                    if running.index(victim) < index:
                        index -= 1
                    self._preempt(victim, request, allocation, plan)
                    if victim is request:
                        return
                allocation = allocate_slots(request, wanted.num_tokens)
            if coasting is None or not coasting.goes_on(request):
                plan.add(request, wanted.num_tokens, allocation, "running", allocation.new_block_ids)
                if self.trace is not None:
                    self._emit_scheduled(request, wanted, plan, "running")
            index += 1

    def _choose_victim(self) -> Request:
        """Whom to preempt: the least urgent running request, or, first come first served, the one admitted last."""
        if self.config.policy == "priority":
            return max(self.running, key=lambda request: (request.priority, request.serial))
        return self.running[-1]

    def _preempt(self, victim: Request, for_request: Request, shortage: Shortage, plan: StepPlan) -> None:
        """Recompute preemption: the victim loses its blocks, keeps its tokens, and waits to compute them anew."""
        row = plan.take_back(victim)
        if self.trace is not None:
            self.trace.emit(
                SchedulePreempted(
                    victim=victim.serial,
                    for_request=for_request.serial,
                    needed=shortage.needed,
                    available=shortage.available,
                    num_computed_tokens=victim.num_computed_tokens,
                    was_scheduled=row is not None,
                )
            )
        if row is not None:
            self.kv_cache_manager.unregister(row.registered, "preempted before its KV was written")
        self.running.remove(victim)
        self.kv_cache_manager.free(victim, "preempted")
        victim.num_computed_tokens = victim.num_remote_tokens = 0
        victim.num_output_placeholders = 0
        victim.spec_token_ids = []
        victim.num_preemptions += 1
        self._set_status(victim, RequestStatus.PREEMPTED, f"r{for_request.serial} needed blocks")
        self.waiting.prepend(victim)
        self._released.append(victim.serial)
        plan.preempted.append(victim)

    # --- waiting requests ---------------------------------------------------------------------------------------

    def _schedule_waiting(self, plan: StepPlan) -> None:
        """Admit waiting requests in order, until a limit or the pool stops one; who is not ready yet is skipped."""
        skipped_waiting_requests: list[Request] = []
        while self.waiting:
            request = self.waiting.peek()
            limit = self._admission_limit(plan)
            if limit is not None:
                self._emit_skipped(request, limit, behind=len(self.waiting) - 1)
                break
            if self.admission.why_wait(request) is not None:
                skipped_waiting_requests.append(self.waiting.pop())
            elif not self._admit(request, plan):
                break
            elif request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
                skipped_waiting_requests.append(request)
        if self.trace is not None:
            self._emit_waits(skipped_waiting_requests)
        # Back to the front in their own order: waiting for an answer costs a request no place.
        for request in reversed(skipped_waiting_requests):
            self.waiting.prepend(request)

    def _admission_limit(self, plan: StepPlan) -> Literal["preemption", "token_budget", "max_num_seqs"] | None:
        """What keeps everyone from being admitted."""
        if plan.preempted:
            return "preemption"
        if plan.budget == 0:
            return "token_budget"
        return "max_num_seqs" if len(self.running) >= self.config.max_num_seqs else None

    def _admit(self, request: Request, plan: StepPlan) -> bool:
        """Take the first waiting request out of the queue, with blocks: to run, or to wait for KV from elsewhere.
        False if the pool cannot serve it now."""
        self._end_wait(request)
        computed, remote = self._find_computed(request)
        num_computed_tokens = request.num_computed_tokens + computed.num_tokens + remote.num_tokens
        wanted = self._tokens_wanted(request, num_computed_tokens, plan)
        load_async = remote.load_async
        num_new_tokens = remote.num_tokens + (0 if load_async else wanted.num_tokens)
        allocation = self.kv_cache_manager.allocate_slots(request, num_new_tokens, computed, cache=not load_async)
        while isinstance(allocation, Shortage):
            if self.running or not self._reclaim_from_waiting(request):
                self._emit_skipped(request, "no_free_blocks", behind=len(self.waiting) - 1, shortage=allocation)
                return False
            allocation = self.kv_cache_manager.allocate_slots(request, num_new_tokens, computed, cache=not load_async)
        self.waiting.pop()
        request.num_remote_tokens += remote.num_tokens
        self.kv_transfer_manager.update_state_after_alloc(request, computed.num_tokens, remote)
        if load_async:
            self._set_status(request, RequestStatus.WAITING_FOR_REMOTE_KVS, "its KV is being loaded")
            return True
        if request.num_cached_tokens is None:
            request.num_cached_tokens = num_computed_tokens
        admission: Admission = "resumed" if request.num_preemptions else "new"
        self.running.append(request)
        self._set_status(request, RequestStatus.RUNNING, "admitted" if admission == "new" else "resumed")
        request.num_computed_tokens = num_computed_tokens
        plan.add(request, wanted.num_tokens, allocation, admission, self.kv_cache_manager.block_ids(request))
        if self.trace is not None:
            self._emit_scheduled(request, wanted, plan, admission)
        return True

    def _find_computed(self, request: Request) -> tuple[ComputedBlocks, RemoteMatch]:
        """KV that a request need not compute: its longest cached prefix, and what a connector has beyond it."""
        if request.num_computed_tokens or not request.reads_prefix_cache:
            return self.kv_cache_manager.nothing_computed, NO_MATCH
        computed = self.kv_cache_manager.get_computed_blocks(request)
        return computed, self.kv_transfer_manager.get_num_new_matched_tokens(request, computed.num_tokens)

    def _end_wait(self, request: Request) -> None:
        """What a request waited for, its grammar or remote KV, is there: it is WAITING like any other now."""
        if request.status is RequestStatus.WAITING_FOR_FSM:
            self._set_status(request, RequestStatus.WAITING, "its grammar is ready")
        elif request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
            self.kv_transfer_manager.take_arrived(request)
            self._set_status(request, RequestStatus.WAITING, "its KV is here")

    def _reclaim_from_waiting(self, request: Request) -> bool:
        """Nothing else runs, and still blocks are missing: take those of the last request whose KV came from elsewhere.

        Without this, requests that wait with their blocks behind one that needs more would wait for ever.
        """
        for holder in reversed(list(self.waiting)):
            if holder.status is RequestStatus.WAITING_FOR_REMOTE_KVS and self.kv_transfer_manager.has_arrived(holder):
                self._end_wait(holder)
            if holder is not request and holder.num_computed_tokens:
                self.kv_cache_manager.free(holder, f"nothing else runs, and r{request.serial} needs blocks")
                holder.num_computed_tokens = holder.num_remote_tokens = 0
                return True
        return False

    # --- the plan leaves ----------------------------------------------------------------------------------------

    def _depart(self, plan: StepPlan) -> SchedulerOutput:
        """Close the plan: from now on its tokens count as computed, and its output is awaited."""
        if plan.is_empty:
            # Nothing will run, so nobody would hear of the released ones: they are kept for the next plan.
            self._emit_step_scheduled(plan, [])
            return SchedulerOutput(step=plan.step, rows=[], released=[])
        for row in plan.rows.values():
            row.request.depart(row.scheduled.num_tokens_after)
        self.in_flight.depart(plan)
        num_drafts_wanted = self.drafting.num_drafts_wanted(plan, len(self.running))
        released, self._released = self._released, []
        self._emit_step_scheduled(plan, released)
        return SchedulerOutput(
            step=plan.step,
            rows=[row.scheduled for row in plan.rows.values()],
            released=released,
            kv_connector_metadata=self.kv_transfer_manager.build_connector_meta(plan),
            num_drafts_wanted=num_drafts_wanted,
            coasting=plan.coasting,
        )

    def _tokens_wanted(self, request: Request, num_computed_tokens: int, plan: StepPlan) -> Wanted:
        return tokens_wanted(
            len(request.token_ids) + request.num_output_placeholders + len(request.spec_token_ids),
            num_computed_tokens,
            plan.budget,
            self.config.long_prefill_token_threshold,
            self.max_model_len,
        )

    def _set_status(self, request: Request, status: RequestStatus, why: str) -> None:
        old, request.status = request.status, status
        self._emit_status(request, old, why)

    # --- what the trace is told ---------------------------------------------------------------------------------

    def _emit_status(self, request: Request, old: RequestStatus | None, why: str) -> None:
        if self.trace is not None:
            self.trace.emit(
                RequestStatusChanged(
                    request=request.serial, old=old.value if old else None, new=request.status.value, why=why
                )
            )

    def _emit_started(self, plan: StepPlan) -> None:
        assert self.trace is not None
        self.trace.emit(
            StepStarted(
                running=[request.serial for request in self.running],
                waiting=[request.serial for request in self.waiting.first(NUM_WAITING_NAMED)],
                num_waiting=len(self.waiting),
                token_budget=plan.budget,
                free_blocks=self.kv_cache_manager.block_pool.num_free_blocks,
            )
        )

    def _emit_scheduled(self, request: Request, wanted: Wanted, plan: StepPlan, admission: Admission) -> None:
        assert self.trace is not None
        found = 0 if admission == "running" else request.num_computed_tokens
        remote = request.num_remote_tokens if found else 0
        self.trace.emit(
            ScheduleRequest(
                request=request.serial,
                admission=admission,
                phase="decode" if _only_newest_left(request, wanted) else "prefill",
                num_wanted_tokens=wanted.num_wanted_tokens,
                num_scheduled_tokens=wanted.num_tokens,
                num_computed_tokens=request.num_computed_tokens,
                num_cached_tokens=found - remote,
                num_remote_tokens=remote,
                truncated_by=wanted.truncated_by,
                budget_left=plan.budget,
                num_awaited_tokens=request.num_output_placeholders,
                draft_token_ids=plan.rows[request.serial].scheduled.draft_token_ids,
            )
        )

    def _emit_waits(self, skipped: list[Request]) -> None:
        waits: dict[WaitingFor, list[Request]] = {}
        for request in skipped:
            wait = self.admission.why_wait(request)
            if wait is not None:
                waits.setdefault(wait, []).append(request)
        for wait, requests in waits.items():
            self._emit_skipped(requests[0], wait, behind=len(requests) - 1)

    def _emit_skipped(self, request: Request, reason: str, behind: int, shortage: Shortage | None = None) -> None:
        if self.trace is not None:
            self.trace.emit(
                ScheduleSkipped(
                    request=request.serial,
                    reason=reason,  # type: ignore[arg-type]
                    needed=shortage.needed if shortage else 0,
                    available=shortage.available if shortage else 0,
                    behind=behind,
                )
            )

    def _emit_step_scheduled(self, plan: StepPlan, released: list[int]) -> None:
        if self.trace is not None:
            self.trace.emit(
                StepScheduled(
                    requests=list(plan.rows),
                    num_scheduled_tokens=[row.scheduled.num_scheduled_tokens for row in plan.rows.values()],
                    total_num_scheduled_tokens=plan.num_tokens,
                    budget_left=plan.budget,
                    free_blocks=self.kv_cache_manager.block_pool.num_free_blocks,
                    released=released,
                )
            )


def _only_newest_left(request: Request, wanted: Wanted) -> bool:
    has_output = request.num_output_tokens + request.num_output_placeholders > 0
    return has_output and wanted.num_wanted_tokens == 1 + len(request.spec_token_ids)
