"""The asynchronous loop: the next step is planned while the last one runs.

::

    this thread    plan 1 │ plan 2 ·············· update 1 │ plan 3 ·············· update 2 │
    executor's            │ forward 1   sample 1 │ forward 2      sample 2 │ forward 3

The plan of step 2 is made before the token of step 1 is known: it reserves a place for it, and the worker, which
sampled it, has it in time. Sampling is asked for apart from the forward pass, because what a guided row may sample
depends on the token before.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from engine.core.engine_core import EngineCore
from engine.core.messages import EngineCoreOutput, EngineCoreOutputs, ForwardFailure, ModelRunnerOutput
from engine.core.seams import Executor
from engine.errors import ForwardError
from engine.guided.xgrammar_backend import XGrammarBackend
from engine.loop.grammars import GrammarsInWork
from engine.loop.synchronous import INTERRUPTED


@dataclass(slots=True)
class _StepInFlight:
    step: int
    answer: Future[ModelRunnerOutput] | None = None
    """None until its tokens are asked for."""


class AsynchronousLoop:
    """Drives a core and an executor with up to two steps in flight.

    Args:
        core: the control plane; called from this thread alone.
        executor: called from one thread of its own, in order.
        grammar_backend: the one that the core asks; None if it has none.
    """

    def __init__(self, core: EngineCore, executor: Executor, grammar_backend: XGrammarBackend | None = None) -> None:
        self._core = core
        self._grammars = GrammarsInWork(core, grammar_backend)
        self._executor = executor
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="executor")
        self._in_flight: deque[_StepInFlight] = deque()
        self._untold: list[EngineCoreOutput] = []
        self._idle = False
        """Whether the last plan was empty, and no step is in flight."""

    @property
    def has_steps_in_flight(self) -> bool:
        """Whether a step is still to be taken in, or there is news that nobody has been told."""
        return bool(self._in_flight or self._untold)

    def step(self) -> EngineCoreOutputs:
        """Plan and start the next step, then take in what the one before it brought.

        An interrupt in the middle is raised; the requests of the steps in flight end with an error, which the next
        step tells.
        """
        if self._untold:
            outputs, self._untold = self._untold, []
            return EngineCoreOutputs(step=self._core.scheduler.step, outputs=outputs)
        try:
            return self._step()
        except BaseException:
            self._give_up()
            raise

    def shutdown(self) -> None:
        """Wait for what still runs, and end the executor's thread."""
        self._thread.shutdown()

    def _step(self) -> EngineCoreOutputs:
        self._untold += self._grammars.tell_core()
        if self._idle and not self._untold and self._grammars.hold_up_all():
            self._grammars.wait()
            return EngineCoreOutputs(step=self._core.scheduler.step, outputs=[])
        plan = self._core.schedule()
        self._idle = not plan.rows and not self._in_flight
        started = _StepInFlight(plan.step) if plan.rows else None
        if started:
            self._in_flight.append(started)
            self._thread.submit(self._executor.execute_model, plan)
        outputs = EngineCoreOutputs(step=plan.step, outputs=[])
        if self._in_flight and self._in_flight[0].answer is not None:
            outputs = self._take_in(self._in_flight[0], self._in_flight[0].answer)
        if started:
            started.answer = self._thread.submit(self._executor.sample_tokens, self._core.grammar_bitmask(plan.step))
        untold, self._untold = self._untold, []
        return EngineCoreOutputs(step=outputs.step, outputs=untold + outputs.outputs)

    def _take_in(self, oldest: _StepInFlight, answer: Future[ModelRunnerOutput]) -> EngineCoreOutputs:
        try:
            output: ModelRunnerOutput | ForwardFailure = answer.result()
        except ForwardError as error:
            output = ForwardFailure(step=oldest.step, why=str(error))
        self._in_flight.popleft()
        return self._core.update(oldest.step, output)

    def _give_up(self) -> None:
        """Let every step in flight land as a failure. What the executor still does for them comes before anything new,
        and nobody looks at it."""
        while self._in_flight:
            step = self._in_flight.popleft().step
            self._untold += self._core.update(step, ForwardFailure(step=step, why=INTERRUPTED)).outputs
