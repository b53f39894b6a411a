"""`RecordedCore`: a fresh `EngineCore` among recorded collaborators, to which the inputs of a trace are fed."""

from __future__ import annotations

from engine.core.engine_core import EngineCore
from engine.core.messages import ForwardFailure
from engine.core.seams import GrammarBackend
from engine.errors import ForwardError
from engine.trace.events import (
    CacheResetAsked,
    ConfigChanged,
    Event,
    ExecutorFailed,
    GrammarFailed,
    GrammarReady,
    Header,
    KVTransferDone,
    KVTransferFinished,
    KVTransferMatched,
    RequestAborted,
    RequestAdded,
    ScheduleCalled,
    StepOutput,
)
from engine.trace.file import AnyTrace
from engine.trace.recorder import EventSink
from sim.recorded import RecordedExecutor, RecordedGrammarBackend, RecordedKVConnector, recorded_request


class RecordedCore:
    """Does again what its inputs made the recorded core do.

    Args:
        trace: what was recorded.
        sink: where the events of the core go.
        grammar_backend: one that compiles a grammar the moment it is asked to; None: what the trace says is trusted.
        header: of a core that is made otherwise; None: the trace's own.
    """

    def __init__(
        self,
        trace: AnyTrace,
        sink: EventSink,
        grammar_backend: GrammarBackend | None = None,
        header: Header | None = None,
    ) -> None:
        header = header or trace.header
        self._executor, self._grammars = RecordedExecutor(), RecordedGrammarBackend()
        self._connector = RecordedKVConnector()
        self.core = EngineCore(
            header.config,
            header.kv_cache,
            header.model.max_model_len,
            sink,
            grammar_backend or self._grammars,
            self._connector if trace.types & {KVTransferMatched, KVTransferFinished} else None,
        )
        self._ids: dict[int, str] = {}

    def hear(self, event: Event) -> None:
        """Take note of what a collaborator answered; this has to come before the input in whose course it is asked."""
        self._executor.hear(event)
        self._grammars.hear(event)
        self._connector.hear(event)

    def feed(self, event: Event) -> str | None:
        """Make the call that an input records. Returns why it is not the call that was recorded, if it is not.

        Raises:
            OrreryError, ValueError, LookupError: the core refuses it.
        """
        match event:
            case RequestAdded():
                return self._add(event)
            case RequestAborted():
                self.core.abort([self._ids[serial] for serial in event.requests], event.cause)
            case GrammarReady():
                self.core.grammar_ready(self._ids[event.request])
            case GrammarFailed():
                self.core.grammar_failed(self._ids[event.request], event.why)
            case KVTransferDone():
                self.core.kv_done(event.finished_receiving, event.finished_sending)
            case CacheResetAsked():
                self.core.reset_prefix_cache()
            case ConfigChanged():
                self.core.reconfigure(event.scheduler)
            case ScheduleCalled():
                plan = self.core.schedule()
                if plan.rows:
                    self._executor.execute_model(plan)
            case StepOutput() | ExecutorFailed():
                self._update(event.step)
        return None

    def _add(self, event: RequestAdded) -> str | None:
        serial = self.core.add(recorded_request(event))
        self._ids[serial] = event.request_id
        return None if serial == event.request else f"it is request {serial} in the order of arrival"

    def _update(self, step: int) -> None:
        try:
            self.core.update(step, self._executor.sample_tokens(None))
        except ForwardError as error:
            self.core.update(step, ForwardFailure(step=step, why=str(error)))
