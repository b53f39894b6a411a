"""The plan of one step, as it grows from `step.started` to `step.scheduled`."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.trace.events import ScheduleRequest, ScheduleSkipped, StepStarted


@dataclass(slots=True)
class PlanState:
    """Who got how many tokens in a step, and who got none."""

    step: int
    token_budget: int
    budget_left: int
    rows: dict[int, ScheduleRequest] = field(default_factory=dict)
    """By serial, in the order of scheduling; a row that a preemption took back is gone from here."""
    skipped: list[ScheduleSkipped] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    """Victims of this step, first victim first."""
    released: list[int] = field(default_factory=list)
    """Serials that leave the worker's batch."""
    complete: bool = False
    """Whether `step.scheduled` has been seen: the plan changes no more."""

    @classmethod
    def of(cls, event: StepStarted) -> PlanState:
        """The empty plan of a step that has just begun."""
        return cls(step=event.step, token_budget=event.token_budget, budget_left=event.token_budget)

    def copy(self) -> PlanState:
        """A plan of its own; events are never changed, so they are shared."""
        return PlanState(
            step=self.step,
            token_budget=self.token_budget,
            budget_left=self.budget_left,
            rows=self.rows.copy(),
            skipped=self.skipped.copy(),
            preempted=self.preempted.copy(),
            released=self.released.copy(),
            complete=self.complete,
        )

    @property
    def num_scheduled_tokens(self) -> int:
        """Length of the super-sequence, in tokens."""
        return sum(row.num_scheduled_tokens for row in self.rows.values())

    def take_back(self, serial: int) -> None:
        """A victim's row leaves the plan, and its tokens return to the budget."""
        row = self.rows.pop(serial)
        self.budget_left += row.num_scheduled_tokens
