"""The synchronous loop: schedule, forward, update, one step after the other in the caller's thread."""

from __future__ import annotations

from engine.core.engine_core import EngineCore
from engine.core.messages import EngineCoreOutputs, ForwardFailure, ModelRunnerOutput, SchedulerOutput
from engine.core.seams import Executor
from engine.errors import ForwardError


class SynchronousLoop:
    """Drives a core and an executor, one step at a time."""

    #: Whether steps are still to be taken in; here a step is over when `step` returns.
    has_steps_in_flight = False

    def __init__(self, core: EngineCore, executor: Executor) -> None:
        self._core = core
        self._executor = executor

    def step(self) -> EngineCoreOutputs:
        """Plan a step, run it, and take in what came of it.

        A failed forward pass ends the requests of its step with an error; all others go on.
        """
        plan = self._core.schedule()
        if not plan.rows:
            return EngineCoreOutputs(step=plan.step, outputs=[])
        return self._core.update(plan.step, self._forward(plan))

    def shutdown(self) -> None:
        """Nothing runs between two steps."""

    def _forward(self, plan: SchedulerOutput) -> ModelRunnerOutput | ForwardFailure:
        try:
            self._executor.execute_model(plan)
            return self._executor.sample_tokens(self._core.grammar_bitmask(plan.step))
        except ForwardError as error:
            return ForwardFailure(step=plan.step, why=str(error))
