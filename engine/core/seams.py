"""The seams of the engine core: everything uncertain answers through one of these protocols.

Each has a real side that computes and a recorded or modelled twin in `sim` that repeats; the core cannot tell which.
"""

from __future__ import annotations

from typing import Protocol

from engine.core.messages import ModelRunnerOutput, SchedulerOutput


class Executor(Protocol):
    """Runs the forward pass of a step, in two phases.

    They are apart because the grammar bitmask of a step may depend on the tokens of the step before, while its
    forward pass does not: the mask can be computed while the model runs.
    """

    def execute_model(self, scheduler_output: SchedulerOutput) -> None:
        """Start the forward pass of a step up to its logits."""

    def sample_tokens(self, grammar_bitmask: None) -> ModelRunnerOutput:
        """Sample from the logits of the step started last.

        Raises:
            ForwardError: the forward pass or the sampling failed.
        """

    def shutdown(self) -> None:
        """Give back what the executor holds; it is not used again."""
