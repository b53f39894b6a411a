"""StepPlan: what a step will run, while it is being planned and while it is in flight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from engine.core.kv_cache.manager import Allocation, RegisteredBlock
from engine.core.messages import CoastingRows, ForwardFailure, ModelRunnerOutput, NewRequestData, ScheduledRow
from engine.core.request import Request

Admission = Literal["running", "new", "resumed"]


class PlannedRow(msgspec.Struct, frozen=True, gc=False):
    """One request's share of the step: what the executor is told, and what the core must remember of it."""

    request: Request
    scheduled: ScheduledRow
    registered: list[RegisteredBlock]
    """Blocks findable by hash already, on the promise that this row fills them."""
    num_preemptions: int
    """The request's count when it was planned."""

    @property
    def is_outdated(self) -> bool:
        """Whether the request has ended or was preempted since: what the row computed is no longer in its blocks."""
        return self.request.num_preemptions != self.num_preemptions or self.request.status.is_finished


class StepPlan:
    """The rows of one step in the order of the super-sequence, and the budget they leave."""

    def __init__(self, step: int, token_budget: int) -> None:
        self.step = step
        self.budget = token_budget
        self.rows: dict[int, PlannedRow] = {}
        self.preempted: list[Request] = []
        self.coasting: CoastingRows | None = None

    def add(
        self,
        request: Request,
        num_tokens: int,
        allocation: Allocation,
        admission: Admission,
        block_ids: tuple[list[int], ...],
    ) -> None:
        """Give a request tokens of this step's budget; those beyond the tokens it has are its drafts."""
        self.budget -= num_tokens
        scheduled = ScheduledRow(
            serial=request.serial,
            request_id=request.request_id,
            num_scheduled_tokens=num_tokens,
            num_computed_tokens=request.num_computed_tokens,
            block_ids=block_ids,
            new=None if admission == "running" else _new_request_data(request),
            draft_token_ids=_scheduled_drafts(request, num_tokens) if request.spec_token_ids else (),
        )
        self.rows[request.serial] = PlannedRow(request, scheduled, allocation.registered, request.num_preemptions)

    def take_back(self, request: Request) -> PlannedRow | None:
        """Take a request out of the step again, if it is in it; its budget is returned to the others.

        The caller frees its blocks, and must take their hashes from the row's `registered` blocks: nobody will
        write the KV that these hashes promise.
        """
        row = self.rows.pop(request.serial, None)
        if row is not None:
            self.budget += row.scheduled.num_scheduled_tokens
        return row

    @property
    def is_empty(self) -> bool:
        """Whether nothing runs in the step."""
        return not self.rows and (self.coasting is None or not self.coasting.num_rows)

    @property
    def num_tokens(self) -> int:
        """Length of the step's super-sequence."""
        return sum(row.scheduled.num_scheduled_tokens for row in self.rows.values())


class StepsInFlight:
    """The plans whose output is awaited: one in a synchronous loop, several in others."""

    def __init__(self) -> None:
        self._plans: dict[int, StepPlan] = {}

    def depart(self, plan: StepPlan) -> None:
        """A plan leaves."""
        self._plans[plan.step] = plan

    def land(self, step: int) -> StepPlan:
        """A plan's output is here."""
        return self._plans.pop(step)

    def __iter__(self) -> Iterator[StepPlan]:
        """The plans in the order in which they left."""
        return iter(self._plans.values())

    def plan_of(self, step: int) -> StepPlan:
        """The plan of a step in flight.

        Raises:
            ValueError: the step is not in flight.
        """
        plan = self._plans.get(step)
        if plan is None:
            raise ValueError(f"step {step} is not in flight; in flight: {list(self._plans)}")
        return plan

    def require(self, step: int, output: ModelRunnerOutput | ForwardFailure) -> None:
        """Refuse an answer that belongs to no step in flight.

        Raises:
            ValueError: the step is not in flight, or the output is not of its rows.
        """
        plan = self.plan_of(step)
        if output.step != step:
            raise ValueError(f"an output of step {output.step} came for step {step}")
        if isinstance(output, ModelRunnerOutput) and output.serials != list(plan.rows):
            raise ValueError(f"step {step} ran requests {list(plan.rows)}, its output names {output.serials}")


def _new_request_data(request: Request) -> NewRequestData:
    return NewRequestData(
        token_ids=list(request.token_ids),
        num_prompt_tokens=request.num_prompt_tokens,
        sampling_params=request.sampling_params,
        prompt_embeds=request.prompt_embeds,
    )


def _scheduled_drafts(request: Request, num_tokens: int) -> tuple[int, ...]:
    num_drafts = request.num_computed_tokens + num_tokens - request.num_tokens
    return tuple(request.spec_token_ids[: max(0, num_drafts)])
