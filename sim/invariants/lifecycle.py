"""The life of a request, from its arrival to its one end, and the tokens it puts out on the way."""

from __future__ import annotations

from collections import Counter

from engine.core.messages import RequestStatus
from engine.trace import events as ev
from sim.invariants.invariant import Invariant, Sentences, after, before
from sim.state import RequestState, State

_S = RequestStatus
_WAITING = (_S.WAITING, _S.WAITING_FOR_FSM, _S.WAITING_FOR_REMOTE_KVS, _S.PREEMPTED)
#: Where a request may go from where it is; every end may follow from every status of a living request.
_NEXT: dict[RequestStatus, tuple[RequestStatus, ...]] = {
    _S.WAITING: (_S.RUNNING, _S.WAITING_FOR_FSM, _S.WAITING_FOR_REMOTE_KVS),
    _S.WAITING_FOR_FSM: (_S.WAITING,),
    _S.WAITING_FOR_REMOTE_KVS: (_S.WAITING,),
    _S.PREEMPTED: (_S.RUNNING, _S.WAITING_FOR_REMOTE_KVS),
    _S.RUNNING: (_S.PREEMPTED,),
}


class Numbered(Invariant):
    """What the recorder stamps."""

    name = "order of events"
    statement = "seq strictly increases, time never runs backwards."

    def __init__(self, header: ev.Header) -> None:
        super().__init__(header)
        self._ts = 0

    @before(*ev.EVENT_TYPES.values())
    def numbered(self, state: State, event: ev.Event) -> Sentences:
        if event.seq <= state.seq:
            yield f"seq {event.seq} does not follow {state.seq}"
        if event.ts < self._ts:
            yield f"{event.ts} ns is before the {self._ts} ns of the event before"
        self._ts = event.ts


class LifeCycle(Invariant):
    """Statuses and queues."""

    name = "life of a request"
    statement = "A request waits, runs, may be preempted and run again, and ends; its queue is that of its status."

    @before(ev.RequestStatusChanged)
    def transition(self, state: State, event: ev.RequestStatusChanged) -> Sentences:
        new = RequestStatus(event.new)
        if event.old is None:
            if new not in _WAITING[:-1]:
                yield f"r{event.request} begins its life as {event.new}"
            return
        old = RequestStatus(event.old)
        if old.is_finished or (not new.is_finished and new not in _NEXT[old]):
            yield f"r{event.request} went from {event.old} to {event.new}"

    @before(ev.RequestAdded)
    def own_name(self, state: State, event: ev.RequestAdded) -> Sentences:
        for serial in (*state.running, *state.waiting):
            if state.requests[serial].request_id == event.request_id:
                yield f"r{event.request} has the id {event.request_id!r} of r{serial}, which is still alive"

    def audit(self, state: State) -> Sentences:
        waiting, running = Counter(state.waiting), Counter(state.running)
        for request in state.requests.values():
            places = (waiting[request.serial], running[request.serial])
            if places != (request.status in _WAITING, request.status is _S.RUNNING):
                yield f"{request.name} is {request.status.value}, its places in waiting and running are {places}"
            if request.finished and not request.ended:
                yield f"{request.name} is {request.status.value}, but its end was not told"


class CleanEnd(Invariant):
    """The last thing said of a request."""

    name = "clean end"
    statement = "A request that ends holds only blocks that a connector works on, and the account of its life is right."

    @before(ev.RequestFinished)
    def holds_nothing(self, state: State, event: ev.RequestFinished) -> Sentences:
        request = state.requests[event.request]
        held = [block_id for table in request.block_ids for block_id in table]
        if held and not (request.sending or request.receiving):
            yield f"{request.name} has ended and still holds blocks {held}"

    @before(ev.RequestFinished)
    def account(self, state: State, event: ev.RequestFinished) -> Sentences:
        request = state.requests[event.request]
        facts: tuple[tuple[str, object, object], ...] = (
            ("status", event.status, request.status.value),
            ("finish_reason", event.finish_reason, request.status.finish_reason),
            ("num_prompt_tokens", event.num_prompt_tokens, request.num_prompt_tokens),
            ("num_output_tokens", event.num_output_tokens, len(request.output_token_ids)),
            ("num_cached_tokens", event.num_cached_tokens, request.num_cached_tokens),
            ("num_preemptions", event.num_preemptions, request.num_preemptions),
        )
        for field, told, true in facts:
            if told != true:
                yield f"{request.name} ends with {field} {told}, it is {true}"


class NothingAfterTheEnd(Invariant):
    """Late output must not reach anybody."""

    name = "nothing after the end"
    statement = "A request that has ended puts out no more tokens, and its text ends once."

    def __init__(self, header: ev.Header) -> None:
        super().__init__(header)
        self._text_ended: set[int] = set()

    @before(ev.UpdateRequest)
    def tokens(self, state: State, event: ev.UpdateRequest) -> Sentences:
        request = state.requests[event.request]
        if request.finished and (event.dropped is None or event.appended):
            yield f"{request.name} got tokens {event.appended} after its end"

    @before(ev.OutputText)
    def text(self, state: State, event: ev.OutputText) -> Sentences:
        if event.request in self._text_ended:
            yield f"r{event.request} got text after its text had ended"
        if event.finished:
            self._text_ended.add(event.request)


class OutputTakenIn(Invariant):
    """From the executor's answer to the requests, row by row."""

    name = "output taken in"
    statement = "Every row's tokens are appended in order, or cut behind a stop, or dropped for a stated reason."

    def __init__(self, header: ev.Header) -> None:
        super().__init__(header)
        self._returned: dict[int, list[int]] = {}
        self._num_drafts: dict[int, int] = {}

    @before(ev.StepOutput)
    def answers_the_plan(self, state: State, event: ev.StepOutput) -> Sentences:
        plan = state.in_flight.get(event.step)
        planned = list(plan.rows) if plan else []
        yield from self._left()
        if event.requests != planned:
            yield f"the output is for {event.requests}, the plan was for {planned}"
        self._returned = dict(zip(event.requests, event.sampled_token_ids, strict=True))
        self._num_drafts = {serial: len(row.draft_token_ids) for serial, row in plan.rows.items()} if plan else {}

    @before(ev.UpdateRequest)
    def rejected(self, state: State, event: ev.UpdateRequest) -> Sentences:
        returned, num_drafts = self._returned.get(event.request), self._num_drafts.get(event.request, 0)
        # All drafts that were accepted come back, and one token more.
        num_rejected = num_drafts + 1 - len(returned) if returned and num_drafts and not event.dropped else 0
        if returned is not None and event.num_rejected != num_rejected:
            yield f"{event.num_rejected} drafts of r{event.request} are said to be rejected, it is {num_rejected}"

    @before(ev.UpdateRequest)
    def appended(self, state: State, event: ev.UpdateRequest) -> Sentences:
        returned = self._returned.pop(event.request, None)
        if returned is None:
            yield f"no output for r{event.request} came back"
        elif event.dropped is not None:
            if event.appended:
                yield f"r{event.request} got {event.appended}, although its output was dropped"
        elif event.appended != returned[: len(event.appended)] or len(event.appended) + event.num_cut != len(returned):
            yield f"{returned} came back for r{event.request}, {event.appended} was appended and {event.num_cut} cut"

    @before(ev.ScheduleCalled)
    def nothing_left(self, state: State, event: ev.ScheduleCalled) -> Sentences:
        yield from self._left()

    def _left(self) -> Sentences:
        for serial in self._returned:
            yield f"the output of r{serial} came back and was not taken in"
        self._returned = {}


class StopConditions(Invariant):
    """Why requests end by their tokens, and that they do."""

    name = "stop conditions"
    statement = "A request ends at its last allowed token, an EOS or a stop token, at once, and for no other reason."

    def __init__(self, header: ev.Header) -> None:
        super().__init__(header)
        self._due: dict[int, str] = {}

    @after(ev.UpdateRequest)
    def reached(self, state: State, event: ev.UpdateRequest) -> Sentences:
        request = state.requests[event.request]
        if event.appended and (reached := self._stop(request)):
            self._due[event.request] = reached
        early = self._early_stop(request, len(event.appended))
        if early is not None:
            yield f"{request.name} went on behind the stop token {early}"

    @before(ev.RequestStatusChanged)
    def ends(self, state: State, event: ev.RequestStatusChanged) -> Sentences:
        status, due = RequestStatus(event.new), self._due.pop(event.request, None)
        if state.requests[event.request].grammar is not None and due is None:
            return  # it may end with its grammar
        if status in (_S.FINISHED_STOPPED, _S.FINISHED_LENGTH_CAPPED) and due != status.value:
            yield f"r{event.request} ends as {status.value}, its tokens say {due or 'that it goes on'}"

    @before(ev.StepStarted)
    def overdue(self, state: State, event: ev.StepStarted) -> Sentences:
        for serial, status in self._due.items():
            yield f"r{serial} should have ended as {status}, but lives on"
        self._due = {}

    def _stop(self, request: RequestState) -> str | None:
        num_output, params = len(request.output_token_ids), request.sampling_params
        capped = params.max_tokens is not None and num_output >= params.max_tokens
        if capped or request.num_tokens >= self.header.model.max_model_len:
            return _S.FINISHED_LENGTH_CAPPED.value
        stops = num_output >= params.min_tokens and request.output_token_ids[-1] in _stop_token_ids(request)
        return _S.FINISHED_STOPPED.value if stops else None

    @staticmethod
    def _early_stop(request: RequestState, num_appended: int) -> int | None:
        output, stops = request.output_token_ids, _stop_token_ids(request)
        newest = range(len(output) - num_appended, len(output) - 1)
        return next(
            (output[i] for i in newest if output[i] in stops and i + 1 >= request.sampling_params.min_tokens), None
        )


def _stop_token_ids(request: RequestState) -> tuple[int, ...]:
    params = request.sampling_params
    return (*params.stop_token_ids, *(() if params.ignore_eos else request.eos_token_ids))


LIFECYCLE_INVARIANTS: tuple[type[Invariant], ...] = (
    Numbered,
    LifeCycle,
    CleanEnd,
    NothingAfterTheEnd,
    OutputTakenIn,
    StopConditions,
)
