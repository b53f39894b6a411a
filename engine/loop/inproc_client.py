"""`InprocClient`: the core and its executor in the caller's own process."""

from __future__ import annotations

from collections.abc import Iterable

from engine.core.engine_core import EngineCore
from engine.core.kv_cache.stats import PrefixCacheStats
from engine.core.messages import EngineCoreOutputs, EngineCoreRequest
from engine.core.seams import Executor
from engine.guided.xgrammar_backend import XGrammarBackend
from engine.loop.asynchronous import AsynchronousLoop
from engine.loop.synchronous import SynchronousLoop


class InprocClient:
    """What a front door may ask of the core, wherever the core runs; here it runs right here.

    Args:
        core: the control plane.
        executor: what runs its forward passes.
        grammar_backend: the one that the core asks; None if it has none.
        async_scheduling: plan the next step while the last one runs.
    """

    def __init__(
        self,
        core: EngineCore,
        executor: Executor,
        grammar_backend: XGrammarBackend | None = None,
        *,
        async_scheduling: bool = False,
    ) -> None:
        self._core = core
        self._executor = executor
        loop = AsynchronousLoop if async_scheduling else SynchronousLoop
        self._loop = loop(core, executor, grammar_backend)

    def add_request(self, request: EngineCoreRequest) -> int:
        """Hand a request to the core; it waits from now on. Returns its serial."""
        return self._core.add(request)

    def abort_requests(self, request_ids: Iterable[str], cause: str) -> None:
        """Take requests out before their end; ids that are not alive are ignored."""
        self._core.abort(request_ids, cause)

    def get_output(self) -> EngineCoreOutputs:
        """The news of a step: of the one that runs now, or of the one before it where steps overlap."""
        return self._loop.step()

    def has_unfinished_requests(self) -> bool:
        """Whether any request waits or runs, or a step is still to be taken in."""
        return self._core.has_unfinished_requests() or self._loop.has_steps_in_flight

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; False if blocks are in use."""
        return self._core.reset_prefix_cache()

    def make_prefix_cache_stats(self) -> PrefixCacheStats:
        """How much of what was asked of the prefix cache it had."""
        return self._core.make_prefix_cache_stats()

    def shutdown(self) -> None:
        """Let what still runs come to its end. The executor is shut down by whoever made it."""
        self._loop.shutdown()
