"""The asynchronous loop: the next step is planned while the last one runs.

::

    this thread    plan 1 │ plan 2 ·············· update 1 │ plan 3 ·············· update 2 │
    executor's            │ forward 1   sample 1 │ forward 2      sample 2 │ forward 3

The plan of step 2 is made before the token of step 1 is known: it reserves a place for it, and the worker, which
sampled it, has it in time. Sampling is asked for apart from the forward pass, because what a guided row may sample
depends on the token before.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from engine.core.engine_core import EngineCore
from engine.core.messages import EngineCoreOutputs, ForwardFailure, ModelRunnerOutput
from engine.core.seams import Executor
from engine.errors import ForwardError


class _StepInFlight(NamedTuple):
    step: int
    answer: Future[ModelRunnerOutput]


class AsynchronousLoop:
    """Drives a core and an executor with up to two steps in flight.

    Args:
        core: the control plane; called from this thread alone.
        executor: called from one thread of its own, in order.
    """

    def __init__(self, core: EngineCore, executor: Executor) -> None:
        self._core = core
        self._executor = executor
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="executor")
        self._last: _StepInFlight | None = None

    @property
    def has_steps_in_flight(self) -> bool:
        """Whether a step runs whose output has not been taken in."""
        return self._last is not None

    def step(self) -> EngineCoreOutputs:
        """Plan and start the next step, then take in what the one before it brought."""
        plan = self._core.schedule()
        if plan.rows:
            self._thread.submit(self._executor.execute_model, plan)
        outputs = self._take_in_last(plan.step)
        if plan.rows:
            grammar_bitmask = self._core.grammar_bitmask(plan.step)
            answer = self._thread.submit(self._executor.sample_tokens, grammar_bitmask)
            self._last = _StepInFlight(plan.step, answer)
        return outputs

    def shutdown(self) -> None:
        """Wait for what still runs, and end the executor's thread."""
        self._thread.shutdown()

    def _take_in_last(self, step: int) -> EngineCoreOutputs:
        last, self._last = self._last, None
        if last is None:
            return EngineCoreOutputs(step=step, outputs=[])
        try:
            return self._core.update(last.step, last.answer.result())
        except ForwardError as error:
            return self._core.update(last.step, ForwardFailure(step=last.step, why=str(error)))
