"""StepPlan: what a step will run, while it is being planned and while it is in flight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.core.kv_cache.manager import Allocation, RegisteredBlock
from engine.core.request import Request

Admission = Literal["running", "new", "resumed"]


@dataclass(slots=True)
class PlannedRow:
    """One request's share of the step."""

    request: Request
    num_tokens: int
    num_computed_tokens: int
    """Before the step."""
    block_ids: tuple[list[int], ...]
    """As in `ScheduledRow`."""
    registered: list[RegisteredBlock]
    """Blocks findable by hash already, on the promise that this row fills them."""
    admission: Admission
    draft_token_ids: tuple[int, ...]
    num_preemptions: int
    """The request's count when it was planned: if it has grown, the request was preempted in the meantime."""


class StepPlan:
    """The rows of one step in the order of the super-sequence, and the budget they leave."""

    def __init__(self, step: int, token_budget: int) -> None:
        self.step = step
        self.budget = token_budget
        self.rows: dict[int, PlannedRow] = {}
        self.preempted: list[Request] = []

    def add(
        self,
        request: Request,
        num_tokens: int,
        allocation: Allocation,
        admission: Admission,
        block_ids: tuple[list[int], ...],
    ) -> None:
        """Give a request tokens in this step; those beyond the tokens it has are its drafts."""
        self.budget -= num_tokens
        num_drafts = max(0, request.num_computed_tokens + num_tokens - request.num_tokens)
        self.rows[request.serial] = PlannedRow(
            request,
            num_tokens,
            request.num_computed_tokens,
            block_ids,
            allocation.registered,
            admission,
            tuple(request.spec_token_ids[:num_drafts]),
            request.num_preemptions,
        )

    def take_back(self, request: Request) -> PlannedRow | None:
        """Take a request out of the step again, if it is in it; its budget is returned to the others.

        The caller frees its blocks, and must take their hashes from the row's `registered` blocks: nobody will
        write the KV that these hashes promise.
        """
        row = self.rows.pop(request.serial, None)
        if row is not None:
            self.budget += row.num_tokens
        return row

    @property
    def num_tokens(self) -> int:
        """Length of the step's super-sequence."""
        return sum(row.num_tokens for row in self.rows.values())
