"""`CalibratedModel`: time from the steps of recorded runs, by least squares over terms that mean something.

| term | nanoseconds per | why |
| --- | --- | --- |
| `step` | step | planning, inputs, the loop |
| `single` | step of one token | layers and output head: vectors, for which a CPU has kernels of their own |
| `request` | request in the step | its row in every stage outside the model |
| `token` | token of several, of `knee` at least | layers: below it reading the weights takes longer than multiplying |
| `logits` | their rows of logits, of `knee` at least, if there is any | the output head, likewise; sampling |
| `decode_pair` | key that a decode sees | attention that reads the cache |
| `prefill_pair` | pair of a query and a key of prompts | attention that multiplies |

Every step counts by its relative error, so that short ones are not drowned by long ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from engine.config import KVCacheConfig, ModelFacts
from engine.errors import TraceError
from sim.cost_model.composition import StepComposition
from sim.cost_model.cost_model import StepTime
from sim.cost_model.least_squares import non_negative_least_squares
from sim.cost_model.recorded_steps import RecordedStep

TERMS = ("step", "single", "request", "token", "logits", "decode_pair", "prefill_pair")

#: Where the knee may lie, in tokens.
_KNEES = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32, 48, 64, 96, 128, 192, 256)

#: A fit needs more observations than it has terms, by far.
MIN_STEPS = 30

#: A step whose time differs from the fit by so many times the median deviation was disturbed by something else.
_OUTLIER = 6.0


class Residual(msgspec.Struct, frozen=True, kw_only=True):
    """How far the fit is from the steps of one kind."""

    num_steps: int
    median_ns: int
    """Their median time."""
    median_error: float
    """Median of |fit − time| / time."""
    mean_error: float
    """Mean of (fit − time) / time: which way it errs."""


class CalibratedDevice(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="calibrated"):
    """What `orrery calibrate` writes: a model on a machine, as it ran."""

    name: str
    """The device that the traces name."""
    model: ModelFacts
    kv_cache: KVCacheConfig
    """Of the recorded engine: where nothing else is asked for, the simulator has as many blocks."""
    knee: int
    """Tokens below which a step of several takes no less time."""
    terms_ns: dict[str, float]
    """Nanoseconds per unit of each term."""
    residuals: dict[str, Residual]
    """By kind of step: prefill, decode, mixed."""
    num_left_out: int
    """Steps that were disturbed, and were not fitted."""
    largest: StepComposition
    """The most of everything in any fitted step: beyond it the model is a guess."""
    traces: tuple[str, ...]

    def model_of_time(self) -> CalibratedModel:
        """The cost model."""
        return CalibratedModel(self.knee, tuple(self.terms_ns[name] for name in TERMS))


class CalibratedModel:
    """Time of a step as a sum of terms.

    Args:
        knee: tokens below which a step of several takes no less time.
        terms_ns: nanoseconds per unit, in the order of `TERMS`.
    """

    def __init__(self, knee: int, terms_ns: Sequence[float]) -> None:
        self.knee = knee
        self.terms_ns = tuple(terms_ns)

    def step_ns(self, step: StepComposition) -> int:
        """See `CostModel`."""
        units = _units(step, self.knee)
        return round(sum(unit * ns for unit, ns in zip(units, self.terms_ns, strict=True)))

    def step_time(self, step: StepComposition) -> StepTime:
        """See `CostModel`."""
        units = _units(step, self.knee)
        return StepTime({name: unit * ns for name, unit, ns in zip(TERMS, units, self.terms_ns, strict=True)})


def _units(step: StepComposition, knee: int) -> tuple[float, ...]:
    if step.num_padded_tokens == 1:
        return 1.0, 1.0, 1.0, 0.0, 0.0, step.decode_pairs, step.prefill_pairs
    logits = max(step.num_logits, knee) if step.num_logits else 0
    tokens = max(step.num_padded_tokens, knee)
    return 1.0, 0.0, step.num_rows, tokens, logits, step.decode_pairs, step.prefill_pairs


def fit(
    steps: Sequence[RecordedStep], *, name: str, model: ModelFacts, kv_cache: KVCacheConfig, traces: Sequence[str]
) -> CalibratedDevice:
    """Find the terms that explain the steps best.

    Raises:
        TraceError: there are too few steps that took any time.
    """
    steps = [step for step in steps if step.duration_ns > 0]
    if len(steps) < MIN_STEPS:
        raise TraceError(f"A calibration needs at least {MIN_STEPS} executed steps, the traces hold {len(steps)}.")
    first = _best_fit(steps)
    kept = _undisturbed(steps, first)
    fitted = _best_fit(kept)
    return CalibratedDevice(
        name=name,
        model=model,
        kv_cache=kv_cache,
        knee=fitted.knee,
        terms_ns=dict(zip(TERMS, fitted.terms_ns, strict=True)),
        residuals=_residuals(kept, fitted),
        num_left_out=len(steps) - len(kept),
        largest=StepComposition(*map(max, zip(*(step.composition for step in kept), strict=True))),
        traces=tuple(traces),
    )


def _best_fit(steps: Sequence[RecordedStep]) -> CalibratedModel:
    """The fit with the knee that leaves least."""
    fits = []
    for knee in _KNEES:
        rows = [[unit / s.duration_ns for unit in _units(s.composition, knee)] for s in steps]
        terms = non_negative_least_squares(rows, [1.0] * len(rows))
        left = sum((sum(u * ns for u, ns in zip(row, terms, strict=True)) - 1.0) ** 2 for row in rows)
        fits.append((left, knee, terms))
    _, knee, terms = min(fits)
    return CalibratedModel(knee, terms)


def _errors(steps: Sequence[RecordedStep], model: CalibratedModel) -> list[float]:
    return [model.step_ns(s.composition) / s.duration_ns - 1.0 for s in steps]


def _undisturbed(steps: Sequence[RecordedStep], model: CalibratedModel) -> list[RecordedStep]:
    errors = _errors(steps, model)
    usual = statistics.median(map(abs, errors))
    return [s for s, error in zip(steps, errors, strict=True) if abs(error) <= _OUTLIER * usual + 1e-9]


def _residuals(steps: Sequence[RecordedStep], model: CalibratedModel) -> dict[str, Residual]:
    residuals = {}
    for phase in ("prefill", "decode", "mixed"):
        of_phase = [s for s in steps if s.composition.phase == phase]
        if not of_phase:
            continue
        errors = _errors(of_phase, model)
        residuals[phase] = Residual(
            num_steps=len(of_phase),
            median_ns=round(statistics.median(s.duration_ns for s in of_phase)),
            median_error=statistics.median(map(abs, errors)),
            mean_error=statistics.fmean(errors),
        )
    return residuals
