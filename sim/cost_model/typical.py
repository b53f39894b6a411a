"""`TypicalModel`: a step takes as long as those of its kind took on average. For runs too short to calibrate by."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import islice

from engine.errors import TraceError
from engine.trace.file import AnyTrace
from sim.cost_model.calibrated import MIN_STEPS, CalibratedModel, fit
from sim.cost_model.composition import StepComposition
from sim.cost_model.cost_model import CostModel, StepTime
from sim.cost_model.recorded_steps import RecordedStep, recorded_steps

#: More steps teach a fit next to nothing.
_MOST_STEPS = 2000
#: For a run that executed no step: any time does.
_UNKNOWN_NS = 1_000_000


class TypicalModel:
    """The mean time of the recorded steps of a kind: prefill, decode or mixed; of all, where there was none.

    Args:
        steps: recorded ones.
    """

    def __init__(self, steps: Sequence[RecordedStep]) -> None:
        self._all = _mean(steps, _UNKNOWN_NS)
        self._of_phase = {
            phase: _mean([step for step in steps if step.composition.phase == phase], self._all)
            for phase in ("prefill", "decode", "mixed")
        }

    def step_ns(self, step: StepComposition) -> int:
        """See `CostModel`."""
        return self._of_phase[step.phase]

    def step_time(self, step: StepComposition) -> StepTime:
        """See `CostModel`."""
        return StepTime({"step": float(self.step_ns(step))})


def cost_model_of(trace: AnyTrace) -> CostModel:
    """How long steps take in the run that a trace records: fitted if there are enough of them, else on average.

    All together they take as long as they did: what disturbed the recorded run is spread over it, so that another run
    is compared with it on equal terms.
    """
    steps = list(islice(recorded_steps(trace.events), _MOST_STEPS))
    header = trace.header
    if len(steps) < MIN_STEPS or header.config.scheduler.async_scheduling:
        return TypicalModel(steps)
    try:
        device = fit(steps, name=header.device, model=header.model, kv_cache=header.kv_cache, traces=())
    except TraceError:  # too few are left without the disturbed ones
        return TypicalModel(steps)
    fitted = device.model_of_time()
    total = sum(fitted.step_ns(step.composition) for step in steps)
    stretch = sum(step.duration_ns for step in steps) / total if total else 1.0
    return CalibratedModel(fitted.knee, [ns * stretch for ns in fitted.terms_ns])


def _mean(steps: Sequence[RecordedStep], otherwise: int) -> int:
    return round(statistics.fmean(step.duration_ns for step in steps)) if steps else otherwise
