"""KV from elsewhere: a request waits until it is here, and no block moves on while a connector works on it."""

from __future__ import annotations

from engine.core.messages import RequestStatus
from engine.trace import events as ev
from sim.invariants.invariant import Invariant, Sentences, after, before
from sim.state import RequestState, State

_WAITS = RequestStatus.WAITING_FOR_REMOTE_KVS


class RemoteTokens(Invariant):
    """From the connector's answer to the row that builds on it."""

    name = "remote tokens"
    statement = "An admission counts the tokens that the connector had, and waits for those loaded in the background."

    def __init__(self, header: ev.Header) -> None:
        super().__init__(header)
        self._in_background: set[int] = set()

    @before(ev.KVLookup)
    def looks_anew(self, state: State, event: ev.KVLookup) -> Sentences:
        self._in_background.discard(event.request)
        yield from ()

    @before(ev.KVTransferMatched)
    def matched(self, state: State, event: ev.KVTransferMatched) -> Sentences:
        (self._in_background.add if event.load_async else self._in_background.discard)(event.request)
        yield from ()

    @before(ev.RequestStatusChanged)
    def waits(self, state: State, event: ev.RequestStatusChanged) -> Sentences:
        request = state.requests[event.request]
        num_tokens = request.num_remote_tokens
        expects = num_tokens > 0 and event.request in self._in_background
        if event.new == _WAITS.value and not expects:
            yield f"{request.name} waits for KV that nobody loads in the background"
        elif request.status is _WAITS and request.receiving and event.new == RequestStatus.WAITING.value:
            yield f"{request.name} waits no more, but its KV is not here"
        elif request.status is _WAITS and event.new == RequestStatus.WAITING.value:
            self._in_background.discard(event.request)
        elif event.new == RequestStatus.RUNNING.value and expects:
            yield f"{request.name} is admitted, but {num_tokens} tokens of it are loaded in the background"

    @before(ev.ScheduleRequest)
    def counted(self, state: State, event: ev.ScheduleRequest) -> Sentences:
        request = state.requests[event.request]
        had = 0 if event.admission == "running" else request.num_remote_tokens
        if event.num_remote_tokens != had:
            yield f"{request.name} is said to take {event.num_remote_tokens} tokens from a connector, which had {had}"

    @after(ev.RequestFinished)
    def ended(self, state: State, event: ev.RequestFinished) -> Sentences:
        self._in_background.discard(event.request)
        yield from ()


class HeldBlocks(Invariant):
    """A connector reads and writes blocks on its own time: nobody else may have them before it is done."""

    name = "held blocks"
    statement = "Blocks that a connector reads or writes stay with their request, and are free as soon as it is done."

    def __init__(self, header: ev.Header) -> None:
        super().__init__(header)
        self._held: set[int] = set()

    @before(ev.KVFreed)
    def not_yet(self, state: State, event: ev.KVFreed) -> Sentences:
        request = state.requests[event.request]
        if request.sending or request.receiving:
            yield f"{request.name} gives up blocks {event.block_ids}, which {_work(request)}"

    @before(ev.KVHeld)
    def held(self, state: State, event: ev.KVHeld) -> Sentences:
        request = state.requests[event.request]
        self._held.add(event.request)
        if not request.finished:
            yield f"the blocks of {request.name} are held as if it had ended, it is {request.status.value}"
        for what, told, true in (
            ("sent", event.sending, request.sending),
            ("received", event.receiving, request.receiving),
        ):
            if told != true:
                yield f"the blocks of {request.name} are {'' if true else 'not '}being {what}, told is {told}"

    @before(ev.RequestFinished)
    def kept(self, state: State, event: ev.RequestFinished) -> Sentences:
        request = state.requests[event.request]
        if (request.sending or request.receiving) and event.request not in self._held:
            yield f"{request.name} has ended without a word on its blocks, which {_work(request)}"

    @before(ev.ScheduleCalled)
    def let_go(self, state: State, event: ev.ScheduleCalled) -> Sentences:
        for request in (state.requests[serial] for serial in sorted(self._held)):
            if not (request.sending or request.receiving):
                self._held.discard(request.serial)
                if request.holds_blocks:
                    yield f"{request.name} has ended and still holds {request.block_ids}, on which no connector works"


def _work(request: RequestState) -> str:
    return "are still being sent" if request.sending else "are still being received"


TRANSFER_INVARIANTS: tuple[type[Invariant], ...] = (RemoteTokens, HeldBlocks)
