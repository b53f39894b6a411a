"""StructuredOutputManager: which requests are guided by a grammar, and whose grammar is ready."""

from __future__ import annotations

from engine.core.messages import GrammarBitmask, RequestStatus
from engine.core.request import Request
from engine.core.scheduler.plan import StepPlan
from engine.core.seams import GrammarBackend
from engine.errors import RequestError
from engine.trace.events import GrammarRequested
from engine.trace.recorder import EventSink


class StructuredOutputManager:
    """Stands between the scheduler and the grammar backend, which knows the vocabulary and fills the bitmasks.

    The backend compiles outside the engine loop. A guided request starts in WAITING_FOR_FSM; the loop reports the end
    of the compilation as an input of the core, so that a replay sees it at the same step.
    """

    def __init__(self, backend: GrammarBackend | None, trace: EventSink | None) -> None:
        self._backend = backend
        self._trace = trace
        self._ready: set[int] = set()

    def require_backend(self) -> None:
        """Refuse a guided request where nothing could guide it.

        Raises:
            RequestError: the engine was built without a grammar backend.
        """
        if self._backend is None:
            raise RequestError("This engine has no grammar backend; a request with a grammar cannot be served.")

    def grammar_init(self, request: Request) -> None:
        """Let the backend compile a request's grammar; the request waits for it."""
        assert self._backend is not None and request.grammar is not None
        if self._trace is not None:
            self._trace.emit(
                GrammarRequested(request=request.serial, grammar_kind=request.grammar.kind, text=request.grammar.text)
            )
        request.status = RequestStatus.WAITING_FOR_FSM
        self._backend.grammar_init(request.serial, request.grammar)

    def mark_ready(self, request: Request) -> None:
        """The grammar of a request is compiled."""
        self._ready.add(request.serial)

    def is_ready(self, request: Request) -> bool:
        """Whether the grammar of a request is compiled."""
        return request.serial in self._ready

    def grammar_bitmask(self, plan: StepPlan) -> GrammarBitmask | None:
        """Which tokens each guided row of a step may sample, one mask per draft position; None if no row is guided."""
        guided = [row for row in plan.rows.values() if row.request.grammar is not None]
        if not guided or self._backend is None:
            return None
        return self._backend.fill_bitmask([(row.request.serial, row.scheduled.draft_token_ids) for row in guided])

    def accept_tokens(self, request: Request, token_ids: list[int]) -> None:
        """Advance a request's automaton over the tokens appended to its output."""
        if request.grammar is not None and self._backend is not None:
            self._backend.accept_tokens(request.serial, token_ids)

    def release(self, request: Request) -> None:
        """Let the backend forget a request that has ended."""
        if request.grammar is not None and self._backend is not None:
            self._ready.discard(request.serial)
            self._backend.release(request.serial)
