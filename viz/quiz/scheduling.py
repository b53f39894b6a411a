"""Questions about the scheduler: how many tokens, who is admitted, who gives way."""

from __future__ import annotations

from collections.abc import Iterator

from engine.trace import events as ev
from sim.request_state import RequestState
from sim.timeline import StepView
from viz.explain import RULES
from viz.explain.words import count
from viz.quiz.question import MOST_CHOICES, Choice, Question, amounts, choices, why_of

# --- how many tokens --------------------------------------------------------------------------------------------


def tokens(view: StepView) -> Question | None:
    """How many tokens does a request get?"""
    rows = view.plan.rows.values()
    row = max(rows, key=_tells_more, default=None)
    if row is None:
        return None
    return Question(
        view.step,
        f"How many tokens does r{row.request} get in this step?",
        amounts(row.num_scheduled_tokens, why_of(view, row), list(_other_amounts(view, row)), "token"),
        RULES["tokens"],
        ("queues",),
        "scheduler",
        request=row.request,
    )


def _tells_more(row: ev.ScheduleRequest) -> tuple[bool, bool, bool, bool]:
    return row.truncated_by is not None, row.num_cached_tokens > 0, row.phase == "prefill", bool(row.draft_token_ids)


def _other_amounts(view: StepView, row: ev.ScheduleRequest) -> Iterator[tuple[int, str]]:
    request, limits = view.before.requests[row.request], view.before.scheduler
    wanted, budget, num_rows = row.num_wanted_tokens, limits.max_num_batched_tokens, len(view.plan.rows)
    if row.truncated_by is not None:
        yield wanted, f"That is all it still has to compute, but {_LIMITS[row.truncated_by]} cuts it."
    if row.num_cached_tokens:
        spared = f"{row.num_cached_tokens:,} of these tokens are cached, and not computed again."
        yield row.num_cached_tokens + row.num_scheduled_tokens, spared
    if row.phase == "decode":
        if row.draft_token_ids:
            yield 1, "Its drafts are computed in the same step: all of them are judged in one forward pass."
            yield len(row.draft_token_ids), "In front of the drafts runs its newest token, which has no KV yet."
        yield request.num_tokens, "The KV of its earlier tokens is kept in its blocks: they are not computed again."
        yield view.before.block_size, "Memory comes in blocks; tokens are computed one by one."
        yield 2, "A decode computes its newest token, and only that."
        return
    yield budget, f"{budget:,} is the budget of the whole step, for all of its requests together."
    yield budget // num_rows, "The budget is not divided evenly: requests are served in order, each as far as it goes."
    yield 1, "One token a step is for who decodes; of a prompt, as many are computed as the limits allow."
    yield wanted // 2, "A prompt is not cut in halves: only a limit cuts it."


_LIMITS = {
    "token_budget": "what is left of the budget",
    "long_prefill_token_threshold": "long_prefill_token_threshold",
    "max_model_len": "max_model_len",
}


# --- who gives way ----------------------------------------------------------------------------------------------


def victim(view: StepView) -> Question | None:
    """Which request is preempted?"""
    event = next((event for event in view.events if isinstance(event, ev.SchedulePreempted)), None)
    if event is None:
        return None
    requests = view.before.requests
    loser = requests[event.victim]
    others = [requests[serial] for serial in view.before.running if serial != event.victim]
    others.sort(key=lambda request: request.serial != event.for_request)
    wrong = [Choice(other.name, _why_not(other, loser, view.before.scheduler.policy)) for other in others]
    idle = [requests[serial] for serial in view.before.waiting[:MOST_CHOICES]]
    wrong += [Choice(each.name, "It waits, and holds no block to give.") for each in idle if not each.holds_blocks]
    needs = f"r{event.for_request} needs {count(event.needed, 'block')}, and free_block_queue holds {event.available:,}"
    return Question(
        view.step,
        f"{needs}. Which request has to give up its blocks?",
        choices(Choice(loser.name, why_of(view, event), right=True), wrong, lambda choice: int(choice.words[1:])),
        RULES["victim"],
        ("queues", "pool"),
        "scheduler",
        request=event.victim,
    )


def _why_not(other: RequestState, loser: RequestState, policy: str) -> str:
    if policy == "fcfs":
        return f"It was admitted before {loser.name}: the one admitted last gives way."
    if other.priority == loser.priority:
        return f"It has the same priority as {loser.name}, but came earlier."
    return (
        f"Its priority, {other.priority}, is more urgent than the {loser.priority} of {loser.name}: lower goes first."
    )


# --- who is admitted --------------------------------------------------------------------------------------------

_OUTCOMES = {
    "admitted": "it runs",
    "no_free_blocks": "it waits: too few free blocks",
    "token_budget": "it waits: no budget is left",
    "max_num_seqs": "it waits: every seat is taken",
    "preemption": "it waits: somebody was preempted",
    "waiting_for_grammar": "it waits: its grammar is not compiled",
}
_RULES = {"admitted": "admission", "no_free_blocks": "slots", "waiting_for_grammar": "gate"}


def admission(view: StepView) -> Question | None:
    """What becomes of a waiting request?"""
    event = next(_decided(view), None)
    if event is None:
        return None
    outcome = event.reason if isinstance(event, ev.ScheduleSkipped) else "admitted"
    right = Choice(_OUTCOMES[outcome], why_of(view, event), right=True)
    wrong = [Choice(_OUTCOMES[other], why) for other, why in _why_not_so(view, event) if other != outcome]
    order = list(_OUTCOMES.values())
    return Question(
        view.step,
        f"r{event.request} waits to run. What does this step make of it?",
        choices(right, wrong, lambda choice: order.index(choice.words)),
        RULES[_RULES.get(outcome, "limit")],
        ("queues", "pool"),
        "scheduler",
        request=event.request,
    )


def _decided(view: StepView) -> Iterator[ev.ScheduleSkipped | ev.ScheduleRequest]:
    """Decisions about requests that waited before the step: those about room first, then grammars, then admissions."""
    waiting = set(view.before.waiting)
    skipped = [e for e in view.events if isinstance(e, ev.ScheduleSkipped) and e.request in waiting]
    yield from (event for event in skipped if not event.reason.startswith("waiting_for"))
    yield from (event for event in skipped if event.reason == "waiting_for_grammar")
    yield from (row for row in view.plan.rows.values() if row.request in waiting)


def _why_not_so(view: StepView, event: ev.ScheduleSkipped | ev.ScheduleRequest) -> Iterator[tuple[str, str]]:
    """What is wrong with each other outcome; only of those that a person might think of here."""
    seats = view.before.scheduler.max_num_seqs
    if isinstance(event, ev.ScheduleRequest):
        left, taken = event.budget_left + event.num_scheduled_tokens, view.planned.running.index(event.request)
        yield "no_free_blocks", "free_block_queue holds a block for every token that it gets in this step."
    else:
        left, taken = view.plan.budget_left, len(view.planned.running)
        yield "admitted", why_of(view, event)
        yield "no_free_blocks", "It does not come to that: blocks are asked for only where nothing else stands against."
    passed_over = isinstance(event, ev.ScheduleSkipped) and event.reason == "waiting_for_grammar"
    yield "token_budget", "Some of the budget is left at its turn." if passed_over else f"{left:,} of it are left."
    yield "max_num_seqs", "A seat is free at its turn." if passed_over else f"{taken:,} of {seats:,} seats are taken."
    if not view.plan.preempted:
        yield "preemption", "Nobody is preempted in this step."
