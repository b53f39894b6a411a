"""A whole run in numbers: its requests, its steps, and their sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.metrics.iteration import IterationMetrics
from engine.metrics.per_position import summed
from engine.metrics.request import RequestMetrics
from engine.metrics.summary import MetricsSummary
from engine.metrics.tally import Tally


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The requests of a run by serial, and its steps in order."""

    requests: list[RequestMetrics]
    iterations: list[IterationMetrics]

    @property
    def drafted(self) -> tuple[int, ...]:
        """Drafts verified, by their place among those of their request; empty without speculation."""
        return summed(iteration.drafted for iteration in self.iterations)

    @property
    def accepted(self) -> tuple[int, ...]:
        """Drafts accepted, by the same places."""
        counts = summed(iteration.accepted for iteration in self.iterations)
        return counts + (0,) * (len(self.drafted) - len(counts))

    def since(self, earlier: RunMetrics) -> RunMetrics:
        """The requests and steps that came after those of `earlier`, which was asked of the same engine."""
        serial = max((request.serial for request in earlier.requests), default=-1)
        step = max((iteration.step for iteration in earlier.iterations), default=0)
        return RunMetrics(
            [request for request in self.requests if request.serial > serial],
            [iteration for iteration in self.iterations if iteration.step > step],
        )

    def summarise(
        self, percentiles: Sequence[float] = (99,), goodput: Mapping[str, float] | None = None
    ) -> MetricsSummary:
        """Sum the run up, see `Tally.summarise`."""
        return Tally().and_those(self.requests, self.iterations).summarise(percentiles, goodput)
