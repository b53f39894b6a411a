"""What a cost model is."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from sim.cost_model.composition import StepComposition


class StepTime(NamedTuple):
    """Nanoseconds of a step, by what they are spent on; the parts follow one another."""

    parts: dict[str, float]

    @property
    def total_ns(self) -> int:
        """Their sum."""
        return round(sum(self.parts.values()))


class CostModel(Protocol):
    """Says how long an engine takes for a step, from one `schedule` to the next."""

    def step_ns(self, step: StepComposition) -> int:
        """Nanoseconds."""

    def step_time(self, step: StepComposition) -> StepTime:
        """The same, with what they are spent on."""
