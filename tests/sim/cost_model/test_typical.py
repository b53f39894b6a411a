"""What a recorded run says of the time of other runs."""

from __future__ import annotations

import pytest

from engine.trace import events as ev
from sim.cost_model.recorded_steps import recorded_steps
from sim.cost_model.typical import cost_model_of
from sim.fork import Change, fork_trace
from tests.viz.conftest import shipped


@pytest.mark.parametrize("name", ["first-token", "mixed-batch", "preemption", "prefix-hit", "crowded"])
def test_the_recorded_steps_take_as_long_together_as_they_did(name: str) -> None:
    trace = shipped(name).trace
    model, steps = cost_model_of(trace), list(recorded_steps(trace.events))
    modelled = sum(model.step_ns(step.composition) for step in steps)
    assert modelled == pytest.approx(sum(step.duration_ns for step in steps), rel=0.01)


@pytest.mark.parametrize("name", ["preemption", "prefix-hit"])
def test_a_fork_that_changes_nothing_lasts_about_as_long(name: str) -> None:
    trace = shipped(name).trace
    forked = fork_trace(trace, Change(step=1))
    ends = [
        next(event.ts for event in reversed(run.events) if isinstance(event, ev.StepOutput)) for run in (trace, forked)
    ]
    assert ends[1] == pytest.approx(ends[0], rel=0.1)
