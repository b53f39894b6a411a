"""The synchronous loop: schedule, forward, update, one step after the other in the caller's thread."""

from __future__ import annotations

from engine.core.engine_core import EngineCore
from engine.core.messages import EngineCoreOutputs, ForwardFailure, ModelRunnerOutput, SchedulerOutput
from engine.core.seams import Executor
from engine.errors import ForwardError
from engine.guided.xgrammar_backend import XGrammarBackend
from engine.loop.grammars import GrammarsInWork


class SynchronousLoop:
    """Drives a core and an executor, one step at a time.

    Args:
        core: the control plane.
        executor: runs its forward passes.
        grammar_backend: the one that the core asks; None if it has none.
    """

    def __init__(self, core: EngineCore, executor: Executor, grammar_backend: XGrammarBackend | None = None) -> None:
        self._core = core
        self._executor = executor
        self._grammars = GrammarsInWork(core, grammar_backend)
        self._untold: EngineCoreOutputs | None = None
        self._idle = False
        """Whether the last plan was empty."""

    @property
    def has_steps_in_flight(self) -> bool:
        """Whether there is news that nobody has been told: of a step that was torn off by an interrupt."""
        return self._untold is not None

    def step(self) -> EngineCoreOutputs:
        """Plan a step, run it, and take in what came of it.

        A failed forward pass ends the requests of its step with an error; all others go on. So does an interrupt in
        the middle of one: it is raised, and what it cost is told by the next step.
        """
        if self._untold is not None:
            untold, self._untold = self._untold, None
            return untold
        outputs = self._grammars.tell_core()
        if self._idle and not outputs and self._grammars.hold_up_all():
            self._grammars.wait()
            return EngineCoreOutputs(step=self._core.scheduler.step, outputs=[])
        plan = self._core.schedule()
        self._idle = not plan.rows
        if self._idle:
            return EngineCoreOutputs(step=plan.step, outputs=outputs)
        try:
            answer = self._forward(plan)
        except BaseException:
            # Its KV may be half written: if the step stayed in flight, its hashes would promise what is not there.
            failed = self._core.update(plan.step, ForwardFailure(step=plan.step, why=INTERRUPTED))
            self._untold = EngineCoreOutputs(step=plan.step, outputs=outputs + failed.outputs)
            raise
        return EngineCoreOutputs(step=plan.step, outputs=outputs + self._core.update(plan.step, answer).outputs)

    def shutdown(self) -> None:
        """Nothing runs between two steps."""

    def _forward(self, plan: SchedulerOutput) -> ModelRunnerOutput | ForwardFailure:
        try:
            self._executor.execute_model(plan)
            return self._executor.sample_tokens(self._core.grammar_bitmask(plan.step))
        except ForwardError as error:
            return ForwardFailure(step=plan.step, why=str(error))


INTERRUPTED = "The step was interrupted."
