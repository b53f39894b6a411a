"""The synchronous loop: schedule, forward, update, one step after the other in the caller's thread."""

from __future__ import annotations

from engine.core.engine_core import EngineCore
from engine.core.messages import EngineCoreOutputs, ForwardFailure, ModelRunnerOutput, SchedulerOutput
from engine.core.seams import Executor
from engine.errors import ForwardError


def run_step(core: EngineCore, executor: Executor) -> EngineCoreOutputs:
    """Plan a step, run it, and take in what came of it.

    A failed forward pass ends the requests of its step with an error; all others go on.
    """
    plan = core.schedule()
    if not plan.rows:
        return EngineCoreOutputs(step=plan.step, outputs=[])
    return core.update(plan.step, _forward(core, executor, plan))


def _forward(core: EngineCore, executor: Executor, plan: SchedulerOutput) -> ModelRunnerOutput | ForwardFailure:
    try:
        executor.execute_model(plan)
        return executor.sample_tokens(core.grammar_bitmask(plan.step))
    except ForwardError as error:
        return ForwardFailure(step=plan.step, why=str(error))
