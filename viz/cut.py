"""The last step of a trace that was cut short: what may be said of a step whose plan is not there to its end."""

from __future__ import annotations

from engine.core.messages import RequestStatus
from sim.plan import PlanState
from sim.timeline import StepView

#: Said wherever a complete plan would be drawn.
UNPLANNED = "The trace ends before the plan of this step was complete."
#: Said of a request about which the step would still have decided.
UNDECIDED = "not decided when the trace ends"
NOBODY_WAITS_YET = "nobody when the trace ends"


def plan_of(view: StepView) -> PlanState | None:
    """The plan of a step, as far as the trace tells it; None if it ends before the plan was begun."""
    plan = view.planned.plan
    return plan if plan is not None and plan.step == view.step else None


def is_planned(view: StepView) -> bool:
    """Whether the trace holds the whole plan of a step."""
    plan = plan_of(view)
    return plan is not None and plan.complete


def undecided(view: StepView) -> list[int]:
    """Requests that run, with a share of an incomplete plan that the trace does not tell.

    By status, not by queue: one that is being admitted has left `waiting` before its row puts it into `running`.
    """
    if is_planned(view):
        return []
    plan = plan_of(view)
    rows = plan.rows if plan else {}
    everyone = view.planned.requests.values()
    return [r.serial for r in everyone if r.status is RequestStatus.RUNNING and r.serial not in rows]
