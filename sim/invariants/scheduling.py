"""What a step may hold, who comes first, and who gives way."""

from __future__ import annotations

from collections.abc import Iterable

from engine.core.messages import RequestStatus
from engine.trace import events as ev
from sim.invariants.invariant import Invariant, Sentences, after, before
from sim.plan import PlanState
from sim.state import State

_HELD_UP = (RequestStatus.WAITING_FOR_FSM, RequestStatus.WAITING_FOR_REMOTE_KVS)


def _plan(state: State) -> PlanState:
    if state.plan is None:
        raise ValueError("no step has begun")
    return state.plan


class TokenBudget(Invariant):
    """The budget, and the account kept of it."""

    name = "token budget"
    statement = "A step holds at most max_num_batched_tokens tokens, and what is left of them is counted right."

    @after(ev.StepStarted)
    def begins(self, state: State, event: ev.StepStarted) -> Sentences:
        limit = state.scheduler.max_num_batched_tokens
        if event.token_budget != limit:
            yield f"the step begins with a budget of {event.token_budget}, max_num_batched_tokens is {limit}"

    @before(ev.ScheduleRequest)
    def account(self, state: State, event: ev.ScheduleRequest) -> Sentences:
        left = _plan(state).budget_left - event.num_scheduled_tokens
        if event.budget_left != left:
            yield f"{left} tokens of the budget are left after r{event.request}, not {event.budget_left}"
        if left < 0:
            yield f"r{event.request} got {event.num_scheduled_tokens} tokens, {-left} more than the budget had left"

    @before(ev.StepScheduled)
    def total(self, state: State, event: ev.StepScheduled) -> Sentences:
        total, limit = sum(event.num_scheduled_tokens), _plan(state).token_budget
        if event.total_num_scheduled_tokens != total:
            yield f"the step is said to hold {event.total_num_scheduled_tokens} tokens, its rows hold {total}"
        if total > limit:
            yield f"the step holds {total} tokens, its budget was {limit}"
        if event.budget_left != limit - total:
            yield f"{event.budget_left} tokens of the budget are said to be left, it is {limit - total}"


class PlanOfRows(Invariant):
    """`step.scheduled` against the `schedule.request` events before it."""

    name = "plan of the step"
    statement = "The plan is its rows in the order in which they were scheduled, without those taken back."

    @before(ev.StepScheduled)
    def rows(self, state: State, event: ev.StepScheduled) -> Sentences:
        rows = {serial: row.num_scheduled_tokens for serial, row in _plan(state).rows.items()}
        if list(rows) != event.requests:
            yield f"rows were scheduled for {_names(rows)}, the plan has {_names(event.requests)}"
        elif list(rows.values()) != event.num_scheduled_tokens:
            yield f"rows of {list(rows.values())} tokens were scheduled, the plan has {event.num_scheduled_tokens}"
        for serial in event.requests:
            if serial not in state.running:
                yield f"r{serial} is in the plan but not in the running queue"


class TokensGiven(Invariant):
    """What a row gets of what it wants."""

    name = "tokens given"
    statement = "A request gets every token not yet computed, unless a limit is named that cut it; at least one."

    @before(ev.ScheduleRequest)
    def given(self, state: State, event: ev.ScheduleRequest) -> Sentences:
        name, given, wanted = f"r{event.request}", event.num_scheduled_tokens, event.num_wanted_tokens
        request = state.requests[event.request]
        known = request.num_tokens + len(request.draft_token_ids)
        missing = known + event.num_awaited_tokens - event.num_computed_tokens
        if wanted != missing:
            yield f"{name} is said to want {wanted} tokens, {missing} of its tokens and drafts are not computed"
        if event.num_awaited_tokens > len(state.in_flight):
            yield f"{name} awaits {event.num_awaited_tokens} tokens, {len(state.in_flight)} steps are in flight"
        if given < 1:
            yield f"{name} got {given} tokens"
        if given > wanted or (given < wanted) != (event.truncated_by is not None):
            yield f"{name} got {given} of {wanted} tokens, cut by {event.truncated_by or 'nothing'}"

    @before(ev.ScheduleRequest)
    def long_prefill(self, state: State, event: ev.ScheduleRequest) -> Sentences:
        threshold = state.scheduler.long_prefill_token_threshold
        if 0 < threshold < event.num_scheduled_tokens:
            yield (
                f"r{event.request} got {event.num_scheduled_tokens} tokens, long_prefill_token_threshold is {threshold}"
            )


class ComputedTokens(Invariant):
    """Where a row begins."""

    name = "computed tokens"
    statement = "A row begins where its request stands: at the tokens computed, or at the KV found here and elsewhere."

    @before(ev.ScheduleRequest)
    def begins(self, state: State, event: ev.ScheduleRequest) -> Sentences:
        running, found = event.admission == "running", event.num_cached_tokens + event.num_remote_tokens
        stands = state.requests[event.request].num_computed_tokens if running else found
        if event.num_computed_tokens != stands:
            yield f"the row of r{event.request} begins at {event.num_computed_tokens}, the request stands at {stands}"

    @before(ev.SchedulePreempted)
    def lost(self, state: State, event: ev.SchedulePreempted) -> Sentences:
        computed = state.requests[event.victim].num_computed_tokens
        if event.num_computed_tokens != computed:
            yield f"r{event.victim} is said to lose {event.num_computed_tokens} computed tokens, it had {computed}"

    @before(ev.UpdateRequest)
    def stands(self, state: State, event: ev.UpdateRequest) -> Sentences:
        request = state.requests[event.request]
        computed = request.num_computed_tokens
        if request.status is RequestStatus.RUNNING:
            computed -= event.num_rejected
        if event.dropped is None and event.num_computed_tokens != computed:
            yield f"r{event.request} is said to stand at {event.num_computed_tokens} computed tokens, it is {computed}"


class MaxNumSeqs(Invariant):
    """The other limit of a step."""

    name = "max_num_seqs"
    statement = "Nobody joins the running requests when max_num_seqs of them run."

    @after(ev.RequestStatusChanged)
    def running(self, state: State, event: ev.RequestStatusChanged) -> Sentences:
        limit = state.scheduler.max_num_seqs
        if event.new == RequestStatus.RUNNING.value and len(state.running) > limit:
            yield f"with r{event.request} {len(state.running)} requests run, max_num_seqs is {limit}"


class MaxModelLen(Invariant):
    """The longest a request may get."""

    name = "max_model_len"
    statement = "No token is computed or generated at or beyond max_model_len."

    @before(ev.ScheduleRequest)
    def computed(self, state: State, event: ev.ScheduleRequest) -> Sentences:
        end = event.num_computed_tokens + event.num_scheduled_tokens
        if end > self.header.model.max_model_len:
            yield f"r{event.request} computes up to position {end}, max_model_len is {self.header.model.max_model_len}"

    @after(ev.RequestAdded)
    def prompt(self, state: State, event: ev.RequestAdded) -> Sentences:
        yield from self._too_long(state, event.request)

    @after(ev.UpdateRequest)
    def generated(self, state: State, event: ev.UpdateRequest) -> Sentences:
        yield from self._too_long(state, event.request)

    def _too_long(self, state: State, serial: int) -> Sentences:
        num_tokens, limit = state.requests[serial].num_tokens, self.header.model.max_model_len
        if num_tokens > limit:
            yield f"r{serial} has {num_tokens} tokens, max_model_len is {limit}"


class SlotsForTokens(Invariant):
    """Paged memory for everything that is computed."""

    name = "slots for tokens"
    statement = "Every scheduled token has a slot in a block of its request's block table."

    @after(ev.StepScheduled)
    def room(self, state: State, event: ev.StepScheduled) -> Sentences:
        for serial in event.requests:
            request = state.requests[serial]
            for table in request.block_ids:
                if len(table) * state.block_size < request.num_computed_tokens:
                    yield (
                        f"{request.name} computes up to {request.num_computed_tokens} tokens, "
                        f"its {len(table)} blocks have {len(table) * state.block_size} slots"
                    )


class QueuesInOrder(Invariant):
    """The queues as the core sees them against the queues that follow from what happened."""

    name = "queues in order"
    statement = "Running in order of admission; waiting in order of arrival, the preempted first, or by priority."

    @before(ev.StepStarted)
    def queues(self, state: State, event: ev.StepStarted) -> Sentences:
        if event.running != state.running:
            yield f"the running queue is {_names(event.running)}, it should be {_names(state.running)}"
        first = state.waiting[: len(event.waiting)]
        if event.waiting != first:
            yield f"the waiting queue begins with {_names(event.waiting)}, it should begin with {_names(first)}"
        if event.num_waiting != len(state.waiting):
            yield f"{event.num_waiting} requests are said to wait, it is {len(state.waiting)}"


class ServingOrder(Invariant):
    """Who is looked at when."""

    name = "serving order"
    statement = "Running requests come before waiting ones, each in the order of its queue; none is passed over."

    @before(ev.RequestStatusChanged)
    def admitted(self, state: State, event: ev.RequestStatusChanged) -> Sentences:
        if event.new != RequestStatus.RUNNING.value or event.request not in state.waiting:
            return
        skipped = {skip.request for skip in _plan(state).skipped}
        for serial in state.waiting[: state.waiting.index(event.request)]:
            if serial not in skipped and state.requests[serial].status not in _HELD_UP:
                yield f"r{event.request} is admitted before r{serial}, which stands before it and was not held up"

    @before(ev.ScheduleRequest)
    def running_first(self, state: State, event: ev.ScheduleRequest) -> Sentences:
        rows = list(_plan(state).rows.values())
        if event.admission != "running" or not rows:
            return
        if rows[-1].admission != "running":
            yield f"r{event.request} was running, but comes after r{rows[-1].request}, which waited"
        elif state.running.index(event.request) < state.running.index(rows[-1].request):
            yield f"r{event.request} comes after r{rows[-1].request}, it stands before it in the running queue"


class Victims(Invariant):
    """Recompute preemption."""

    name = "victims"
    statement = "Whoever came last, or has the least priority, gives way, and only when blocks are short."

    @before(ev.SchedulePreempted)
    def chosen(self, state: State, event: ev.SchedulePreempted) -> Sentences:
        if event.needed <= event.available:
            yield f"r{event.victim} is preempted, but {event.available} blocks are free and {event.needed} needed"
        if event.available != state.pool.num_free:
            yield f"{event.available} blocks are said to be free, free_block_queue holds {state.pool.num_free}"
        last = state.running[-1]
        if state.policy == "priority":
            last = max(state.running, key=lambda serial: (state.requests[serial].priority, serial))
        if event.victim != last:
            yield f"r{event.victim} is preempted, r{last} should give way"


class NothingNewAfterPreemption(Invariant):
    """Otherwise a newcomer would take the blocks that the victim gave up."""

    name = "nothing new after a preemption"
    statement = "A step that preempts admits nobody."

    @before(ev.ScheduleRequest)
    def admitted(self, state: State, event: ev.ScheduleRequest) -> Sentences:
        preempted = _plan(state).preempted
        if preempted and event.admission != "running":
            yield f"r{event.request} is admitted in a step that preempted {_names(preempted)}"


def _names(serials: Iterable[int]) -> str:
    names = [f"r{serial}" for serial in serials]
    return ", ".join(names) if names else "nobody"


SCHEDULING_INVARIANTS: tuple[type[Invariant], ...] = (
    TokenBudget,
    PlanOfRows,
    TokensGiven,
    ComputedTokens,
    MaxNumSeqs,
    MaxModelLen,
    SlotsForTokens,
    QueuesInOrder,
    ServingOrder,
    Victims,
    NothingNewAfterPreemption,
)
