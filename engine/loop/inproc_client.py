"""`InprocClient`: the core and its executor in the caller's own process and thread."""

from __future__ import annotations

from collections.abc import Iterable

from engine.core.engine_core import EngineCore
from engine.core.messages import EngineCoreOutputs, EngineCoreRequest
from engine.core.seams import Executor
from engine.loop.synchronous import run_step


class InprocClient:
    """What a front door may ask of the core, wherever the core runs; here it runs right here.

    Args:
        core: the control plane.
        executor: what runs its forward passes.
    """

    def __init__(self, core: EngineCore, executor: Executor) -> None:
        self._core = core
        self._executor = executor

    def add_request(self, request: EngineCoreRequest) -> int:
        """Hand a request to the core; it waits from now on. Returns its serial."""
        return self._core.add(request)

    def abort_requests(self, request_ids: Iterable[str], cause: str) -> None:
        """Take requests out before their end; ids that are not alive are ignored."""
        self._core.abort(request_ids, cause)

    def get_output(self) -> EngineCoreOutputs:
        """The news of the next step, which runs now."""
        return run_step(self._core, self._executor)

    def has_unfinished_requests(self) -> bool:
        """Whether any request waits or runs."""
        return self._core.has_unfinished_requests()

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; False if blocks are in use."""
        return self._core.reset_prefix_cache()

    def shutdown(self) -> None:
        """Give back what the executor holds."""
        self._executor.shutdown()
