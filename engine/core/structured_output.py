"""StructuredOutputManager: which requests are guided by a grammar, and whose grammar is ready."""

from __future__ import annotations

from engine.core.messages import GrammarBitmask, RequestStatus
from engine.core.request import Request
from engine.core.scheduler.plan import PlannedRow, StepPlan
from engine.core.seams import GrammarBackend
from engine.errors import RequestError
from engine.trace.events import GrammarAdvanced, GrammarBitmaskFilled, GrammarRequested
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
        self._shown_masks: set[str] = set()
        """Digests of the masks whose words the trace has."""

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

    def must_wait(self, request: Request) -> bool:
        """Whether a request waits for its grammar, and cannot be admitted before."""
        return request.status is RequestStatus.WAITING_FOR_FSM and not self.is_ready(request)

    def grammar_bitmask(self, plan: StepPlan) -> GrammarBitmask | None:
        """Which tokens each guided row of a step may sample: one mask before each of its drafts, and one behind the
        last; None if no row is guided.

        Left out are rows that sample nothing yet, and those whose request has ended while the step ran.
        """
        guided = [row for row in plan.rows.values() if row.request.grammar is not None and _samples(row)]
        if not guided or self._backend is None:
            return None
        rows = [(row.request.serial, row.scheduled.draft_token_ids) for row in guided]
        bitmask = self._backend.fill_bitmask(rows)
        if self._trace is not None:
            # Between two calls that change something: what these write down belongs to the step that it did before.
            step, self._trace.step = self._trace.step, plan.step
            self._emit_filled(self._trace, rows, bitmask)
            self._trace.step = step
        return bitmask

    def accept_tokens(self, request: Request, token_ids: list[int]) -> bool:
        """Advance a request's automaton over the tokens appended to its output. Returns whether its grammar has come to
        its end."""
        if request.grammar is None or self._backend is None or not token_ids:
            return False
        steps = self._backend.accept_tokens(request.serial, token_ids)
        if self._trace is not None and steps is not None:
            self._trace.emit(
                GrammarAdvanced(
                    request=request.serial, before=steps.before, after=steps.after, terminated=steps.terminated
                )
            )
        return steps is not None and steps.terminated

    def release(self, request: Request) -> None:
        """Let the backend forget a request that has ended."""
        if request.grammar is not None and self._backend is not None:
            self._ready.discard(request.serial)
            self._backend.release(request.serial)

    def _emit_filled(self, trace: EventSink, rows: list[tuple[int, tuple[int, ...]]], bitmask: GrammarBitmask) -> None:
        assert self._backend is not None
        masks = self._backend.describe_masks(bitmask)
        if masks is None:
            return
        new = {mask.digest: mask.words for mask in masks if mask.digest not in self._shown_masks}
        self._shown_masks.update(new)
        per_row = iter(masks)
        shown = [[next(per_row) for _ in range(1 + len(drafts))] for _, drafts in rows]
        trace.emit(
            GrammarBitmaskFilled(
                requests=bitmask.serials,
                num_allowed=[[mask.num_allowed for mask in row] for row in shown],
                digests=[[mask.digest for mask in row] for row in shown],
                words=new,
            )
        )


def _samples(row: PlannedRow) -> bool:
    """Whether a step in flight brings tokens of this row: it lives, and nothing of it is left to compute."""
    return not row.request.status.is_finished and row.scheduled.num_tokens_after >= row.request.num_tokens
