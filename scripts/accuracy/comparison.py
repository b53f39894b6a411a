"""How far predictions are from runs, and how far they may be."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from engine.bench.results import Machine
from scripts.accuracy.measurement import Figures
from sim.cost_model.calibrated import CalibratedDevice

#: What is compared; the second: the figure whose limit it has, of which a percentile is allowed twice as much.
MEASURES = {
    "output_throughput": "output_throughput",
    "median_ttft": "median_ttft",
    "median_itl": "median_itl",
    "median_e2el": "median_e2el",
    "p99_ttft": "median_ttft",
    "p99_itl": "median_itl",
    "p99_e2el": "median_e2el",
}
_LEAST_LIMIT = 0.05
_SPREADS = 1.5


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """A held-out run."""

    name: str
    workload: str
    """Its shape, and how many requests came at what rate."""
    engine_args: dict[str, int | bool]
    load: float
    is_saturated: bool
    real: list[Figures]
    """One entry per time that it was run."""
    predicted: Figures

    def of_real(self, measure: str) -> float:
        """Median over the times that it was run."""
        return statistics.median(getattr(figures, measure) for figures in self.real)

    def error(self, measure: str) -> float:
        """Predicted / real − 1."""
        return float(getattr(self.predicted, measure)) / self.of_real(measure) - 1.0

    def spread(self, measure: str) -> float:
        """(largest − smallest) / median over the times that it was run."""
        values = [getattr(figures, measure) for figures in self.real]
        return (max(values) - min(values)) / statistics.median(values)


class Verdict(NamedTuple):
    """A measure over all runs."""

    measure: str
    num_runs: int
    error: float
    """Mean absolute error."""
    spread: float
    """Mean over the runs that were repeated."""
    limit: float

    @property
    def is_kept(self) -> bool:
        """Whether the error is within the limit."""
        return self.error <= self.limit


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, as it stands in `docs/accuracy.json`."""

    machine: Machine
    is_quick: bool
    """Whether the runs were too short to say much."""
    device: CalibratedDevice
    runs: list[Compared]

    def verdicts(self) -> list[Verdict]:
        """Of each measure; of TTFT over the runs below saturation, since above it the length of the run decides."""
        return [self._verdict(measure, parent) for measure, parent in MEASURES.items()]

    def _verdict(self, measure: str, parent: str) -> Verdict:
        runs = [run for run in self.runs if not (run.is_saturated and measure.endswith("ttft"))]
        limit = max(_LEAST_LIMIT, _SPREADS * self._spread(parent)) * (1 if measure == parent else 2)
        error = statistics.fmean(abs(run.error(measure)) for run in runs)
        return Verdict(measure, len(runs), error, self._spread(measure), limit)

    def _spread(self, measure: str) -> float:
        repeated: Sequence[Compared] = [run for run in self.runs if len(run.real) > 1]
        return statistics.fmean(run.spread(measure) for run in repeated) if repeated else 0.0
