"""Who is asked for drafts: a draft that is not accepted costs its place in the forward pass, so it has to pay.

Two things speak against drafts. In a large batch the places that drafts take are no longer free: with more than
`disable_by_batch_size` running requests nobody gets any. And a request whose drafts keep being rejected pauses, longer
each time; after each pause it tries again::

    verified    ✓ ✗ ✓ ✗ ✗ … 16 in a row ──── 8 steps ──── ✗ ──── 16 steps ──── ✓ ✓ …

The drafts of one step more may be under way when a pause begins; they are verified like any other.
"""

from __future__ import annotations

from engine.config import SpeculativeConfig
from engine.core.request import Request
from engine.core.scheduler.plan import StepPlan
from engine.trace.events import SpecPaused
from engine.trace.recorder import EventSink

#: Verifications in a row without an accepted draft, after which a request pauses. Of a drafter that is right in two of
#: five, so many hardly ever come by chance.
PATIENCE = 16
#: Steps that its first pause lasts; each further one lasts twice as long as the one before.
FIRST_PAUSE = 8
#: Steps that none outlasts: a text that begins to repeat itself is noticed.
LONGEST_PAUSE = 64


class DraftingPolicy:
    """Says for every step how many drafts each of its requests should bring along for the next.

    Args:
        config: of speculative decoding; None: there are no drafts.
        trace: where pauses are told.
    """

    def __init__(self, config: SpeculativeConfig | None, trace: EventSink | None) -> None:
        self._config = config
        self._trace = trace

    def num_drafts_wanted(self, plan: StepPlan, num_running: int) -> list[int] | None:
        """Most drafts for each row of a plan; None without speculation."""
        if self._config is None:
            return None
        most, limit = self._config.num_speculative_tokens, self._config.disable_by_batch_size
        if limit is not None and num_running > limit:
            self._tell(SpecPaused(reason="batch_size", requests=list(plan.rows), num_running=num_running))
            return [0] * len(plan.rows)
        paused = [row.request for row in plan.rows.values() if plan.step < row.request.drafts_from_step]
        if not paused:
            return [most] * len(plan.rows)
        self._tell(
            SpecPaused(
                reason="rejected",
                requests=[request.serial for request in paused],
                num_running=num_running,
                until_steps=[request.drafts_from_step for request in paused],
            )
        )
        return [0 if plan.step < row.request.drafts_from_step else most for row in plan.rows.values()]

    def _tell(self, event: SpecPaused) -> None:
        if self._trace is not None:
            self._trace.emit(event)


def note_verdict(request: Request, step: int, num_accepted: int) -> None:
    """Remember whether the drafts that a step has verified were worth it."""
    if num_accepted:
        request.num_fruitless_verifications = request.drafts_from_step = 0
    elif step >= request.drafts_from_step:  # else they were under way when the pause began
        request.num_fruitless_verifications += 1
        num_pauses = request.num_fruitless_verifications - PATIENCE
        if num_pauses >= 0:
            request.drafts_from_step = step + min(FIRST_PAUSE << num_pauses, LONGEST_PAUSE)
