"""Why one request waits in a step: what limited it, behind whom it stands, and since when."""

from __future__ import annotations

from typing import NamedTuple

from engine.core.messages import RequestStatus
from engine.trace import events as ev
from sim.plan import PlanState
from sim.request_state import RequestState
from sim.timeline import StepView
from viz.cut import plan_of
from viz.explain.rules import RULES, Rule
from viz.explain.words import WAITS_FOR, count, names, ordinal, shortage

#: Reasons that stop the line: nobody behind the first request that they meet is admitted.
_STOPS = ("token_budget", "max_num_seqs", "no_free_blocks", "preemption")


class Wait(NamedTuple):
    """The answer for one request in one step."""

    request: int
    sentence: str
    """What limited it, in words that complete "because "."""
    rule: Rule
    since: str
    """For how long, in words: `since it came, after step 4: 3 steps`."""
    since_step: int
    """The first step in which it waited."""
    behind: int | None = None
    """The request at the head of the line that holds it up."""


def why_waits(view: StepView, serial: int) -> Wait | None:
    """Why a request got no token in a step; None if it got some, has ended, is not there yet, or the trace was cut
    before it was decided."""
    plan, request = plan_of(view), view.planned.requests.get(serial)
    if plan is None or not plan.complete or serial in plan.rows or request is None or request.finished:
        return None
    since, first = _since(view, serial)
    sentence, rule, behind = _cause(view, plan, request)
    return Wait(serial, sentence, RULES[rule], since, first, behind)


class _Cause(NamedTuple):
    sentence: str
    rule: str
    behind: int | None = None


def _cause(view: StepView, plan: PlanState, request: RequestState) -> _Cause:
    if request.serial in plan.preempted:
        return _gave_way(view, request.serial)
    if request.status is RequestStatus.RUNNING:
        return _got_no_share(view, plan, request.serial)
    if request.status is RequestStatus.WAITING_FOR_REMOTE_KVS and request.receiving:
        return _Cause(f"{WAITS_FOR[request.status]}: another engine has computed it", "gate")
    if request.status is RequestStatus.WAITING_FOR_FSM and not _is_compiled(view, request.serial):
        return _Cause(f"{WAITS_FOR[request.status]}: it is still being compiled", "gate")
    return _stopped_with_the_line(view, plan, request.serial)


def _gave_way(view: StepView, serial: int) -> _Cause:
    event = next(e for e in view.events if isinstance(e, ev.SchedulePreempted) and e.victim == serial)
    needs = shortage(event.needed, event.available)
    if event.for_request == serial:
        return _Cause(f"it was preempted in this step: it {needs}, and nobody else could give way", "victim")
    return _Cause(f"it was preempted in this step: r{event.for_request} {needs}", "victim", event.for_request)


def _got_no_share(view: StepView, plan: PlanState, serial: int) -> _Cause:
    """It runs, but has no row."""
    running = view.planned.running
    spent = next((event for event in plan.skipped if event.request in running), None)
    if spent is None or running.index(serial) < running.index(spent.request):
        return _Cause("its last token is still being computed by a step in flight", "running")
    return _Cause(f"{_who_spent(plan)}, and nothing is left for it", "running")


def _stopped_with_the_line(view: StepView, plan: PlanState, serial: int) -> _Cause:
    line = view.planned.waiting
    stop = next((event for event in plan.skipped if event.reason in _STOPS and event.request in line), None)
    if stop is None:
        return _Cause("the trace does not tell what stopped it", "line")
    place = f"it is {ordinal(line.index(serial) + 1)} of {len(line):,} in the line" if line[1:] else "nobody else waits"
    if stop.reason == "token_budget":
        return _Cause(f"{_who_spent(plan)}; {place}", "limit")
    if stop.reason == "max_num_seqs":
        seats = (
            f"{len(view.planned.running):,} run already, and max_num_seqs is {view.planned.scheduler.max_num_seqs:,}"
        )
        return _Cause(f"{seats}; {place}", "limit")
    if stop.reason == "preemption":
        return _Cause(f"a step that preempts admits nobody, and {names(plan.preempted)} gave way; {place}", "limit")
    needs = shortage(stop.needed, stop.available)
    if stop.request == serial:
        return _Cause(f"it {needs}; {place}", "slots")
    return _Cause(
        f"it stands behind r{stop.request}, which {needs}, and nobody overtakes; {place}", "line", stop.request
    )


def _who_spent(plan: PlanState) -> str:
    budget, rows = count(plan.token_budget, "token"), plan.rows.values()
    most = sorted(rows, key=lambda row: row.num_scheduled_tokens, reverse=True)
    if most and 2 * most[0].num_scheduled_tokens > plan.token_budget:
        return f"r{most[0].request} took {most[0].num_scheduled_tokens:,} of the {budget} of the budget"
    return f"the budget of {budget} went to {names([row.request for row in most], 3)}"


def _is_compiled(view: StepView, serial: int) -> bool:
    """Whether the grammar of a request that has never run was ready when the step was planned."""
    timeline = view.timeline
    until = timeline.span(view.step).planned
    touches = (timeline.events[at] for at in timeline.touches.requests[serial] if at < until)
    return any(isinstance(event, ev.GrammarReady) for event in touches)


def _since(view: StepView, serial: int) -> tuple[str, int]:
    """How long it has waited up to this step, in words; and the first step in which it did."""
    life = view.timeline.life_lines[serial]
    ran = max((step for step in life.scheduled if step < view.step), default=None)
    preempted = max((step for step in life.preempted if step <= view.step), default=None)
    if preempted is not None and (ran is None or preempted > ran):
        first, why = preempted, f"since it was preempted in step {preempted:,}"
    elif ran is not None:
        first, why = ran + 1, f"since it last ran, in step {ran:,}"
    else:
        first, why = life.added + 1, f"since it came, after step {life.added:,}" if life.added else "from the start"
    return f"{why}: its {ordinal(view.step - first + 1)} step without tokens", first
