"""What a loop does about grammars: it tells the core what became of them, and waits where nothing else can be done."""

from __future__ import annotations

from engine.core.engine_core import EngineCore
from engine.core.messages import EngineCoreOutput
from engine.guided.xgrammar_backend import XGrammarBackend

#: Longest sleep of a loop in which nothing runs, in seconds: so late does it hear of a Ctrl-C or a new request.
_LONGEST_WAIT = 0.1


class GrammarsInWork:
    """The grammars that are being compiled, as a loop sees them.

    Args:
        core: hears the news, at the beginning of a step.
        backend: compiles; None where no request can be guided.
    """

    def __init__(self, core: EngineCore, backend: XGrammarBackend | None) -> None:
        self._core = core
        self._backend = backend

    def tell_core(self) -> list[EngineCoreOutput]:
        """Let the core know whose grammars are ready, and whose will never be. Returns the ends of the latter."""
        news = self._backend.take_news() if self._backend is not None else []
        if not news:
            return []
        ids = {request.serial: request_id for request_id, request in self._core.requests.items()}
        ended: list[EngineCoreOutput] = []
        for serial, automaton, why_failed in news:
            if why_failed is None:
                self._core.grammar_ready(ids[serial], automaton)
            else:
                ended += self._core.grammar_failed(ids[serial], why_failed).outputs
        return ended

    def hold_up_all(self) -> bool:
        """Whether no living request can go on before its grammar is ready."""
        requests = self._core.requests.values()
        return bool(requests) and all(map(self._core.structured_output_manager.must_wait, requests))

    def wait(self) -> None:
        """Sleep until there is news, for a moment at most."""
        if self._backend is not None:
            self._backend.wait(_LONGEST_WAIT)
