"""Who gets how many tokens in a step, who gets none, and who has to give way."""

from __future__ import annotations

from engine.core.messages import RequestStatus
from engine.trace import events as ev
from viz.explain.telling import Said, Tellers, Telling
from viz.explain.words import count, shortage


def _row(told: Telling, event: ev.ScheduleRequest) -> Said:
    sentence = f"{_amount(event)}: {_why_amount(told, event)}{_cut_drafts(told, event)}"
    rule = "tokens" if event.truncated_by else "running" if event.admission == "running" else "admission"
    return Said(event.request, sentence, rule)


def _amount(event: ev.ScheduleRequest) -> str:
    if event.truncated_by is None:
        return count(event.num_scheduled_tokens, "token")
    return f"{event.num_scheduled_tokens:,} of {count(event.num_wanted_tokens, 'token')}"


def _why_amount(told: Telling, event: ev.ScheduleRequest) -> str:
    if event.truncated_by is not None:
        return _why_cut(told, event)
    if event.phase == "decode":
        drafts = len(event.draft_token_ids)
        return f"it is decoding, and verifies {count(drafts, 'draft')}" if drafts else "it is decoding"
    cached = f", {event.num_cached_tokens:,} were cached" if event.num_cached_tokens else ""
    if event.num_remote_tokens:
        cached += f", {event.num_remote_tokens:,} came from another engine"
    if event.admission == "resumed":
        return f"it was preempted and computes them again{cached}"
    before = told.before.requests[event.request]
    if told.after.requests[event.request].num_preemptions and before.output_token_ids:
        return "the rest of what it computes again"
    if event.num_computed_tokens == 0:
        return "its whole prompt"
    return f"the rest of its prompt{cached}"


def _why_cut(told: Telling, event: ev.ScheduleRequest) -> str:
    if event.truncated_by == "long_prefill_token_threshold":
        return f"long_prefill_token_threshold is {told.limits.long_prefill_token_threshold:,}"
    if event.truncated_by == "max_model_len":
        return f"max_model_len is {told.max_model_len:,}"
    budget, left = told.limits.max_num_batched_tokens, event.budget_left + event.num_scheduled_tokens
    if not told.rows:
        return f"the budget is {budget:,}"
    others = "the decodes" if all(row.phase == "decode" for row in told.rows.values()) else "the rows before it"
    return f"the budget of {budget:,} had {left:,} left after {others}"


def _cut_drafts(told: Telling, event: ev.ScheduleRequest) -> str:
    proposed = len(told.before.requests[event.request].draft_token_ids)
    left_out = proposed - len(event.draft_token_ids)
    if event.truncated_by is None or left_out <= 0:
        return ""
    return f"; {left_out:,} of its {count(proposed, 'draft')} {'is' if left_out == 1 else 'are'} left out"


def _skipped(told: Telling, event: ev.ScheduleSkipped) -> Said:
    behind = f", with {event.behind:,} more behind it" if event.behind else ""
    if event.reason == "waiting_for_grammar":
        others = f" (nor are those of {count(event.behind, 'other')})" if event.behind else ""
        return Said(event.request, f"skipped: its grammar is not ready{others}", "gate")
    if event.reason == "waiting_for_remote_kvs":
        others = f" (so is that of {count(event.behind, 'other')})" if event.behind else ""
        return Said(event.request, f"skipped: its KV is still on its way{others}", "gate")
    if event.request in told.running:
        return Said(event.request, f"gets nothing: no budget is left in this step{behind}", "running")
    if event.reason == "no_free_blocks":
        needs = shortage(event.needed, event.available)
        return Said(event.request, f"stays in waiting: {needs}{behind}", "slots")
    return Said(event.request, f"stays in waiting: {_limit(told, event)}{behind}", "limit")


def _limit(told: Telling, event: ev.ScheduleSkipped) -> str:
    if event.reason == "token_budget":
        return "no budget is left in this step"
    if event.reason == "max_num_seqs":
        return f"{len(told.running) + _num_admitted(told):,} run already, and max_num_seqs allows no more"
    return "a step that preempts admits nobody"


def _num_admitted(told: Telling) -> int:
    return sum(row.admission != "running" for row in told.rows.values())


def _preempted(told: Telling, event: ev.SchedulePreempted) -> Said:
    returned, policy = told.rows.get(event.victim), told.limits.policy
    back = f"; its {count(returned.num_scheduled_tokens, 'token')} go back to the budget" if returned else ""
    who = "the last of the running queue" if policy == "fcfs" else "the least urgent of those running"
    needs = shortage(event.needed, event.available)
    if event.victim == event.for_request:
        return Said(event.victim, f"preempted: it {needs}, and it is itself {who} ({policy})", "victim")
    for_whom = f"preempted: r{event.for_request} {needs}"
    return Said(event.victim, f"{for_whom}, so {who} gives way ({policy}){back}", "victim")


def _planned(told: Telling, event: ev.StepScheduled) -> Said | None:
    if not event.requests:
        return None
    total, requests = count(event.total_num_scheduled_tokens, "token"), count(len(event.requests), "request")
    left = f"{event.budget_left:,} of the budget are left" if event.budget_left else "the budget is spent"
    return Said(None, f"the plan is complete: {total} for {requests}; {left}", "plan", detail=True)


def _turned(told: Telling, event: ev.RequestStatusChanged) -> Said | None:
    """The turns in the life of a waiting request; all others are told by the decision that led to them."""
    old, new = event.old and RequestStatus(event.old), RequestStatus(event.new)
    if new is RequestStatus.WAITING_FOR_REMOTE_KVS:
        return Said(event.request, "waits for KV that another engine has computed", "admission")
    if new is not RequestStatus.WAITING:
        return None
    if old is RequestStatus.WAITING_FOR_REMOTE_KVS:
        return Said(event.request, "the KV it waited for is here, and counts as computed", "arrival")
    if old is RequestStatus.WAITING_FOR_FSM:
        return Said(event.request, "its grammar is ready", "gate")
    return None


def _limits_changed(told: Telling, event: ev.ConfigChanged) -> Said:
    limits = event.scheduler
    tokens, seqs = count(limits.max_num_batched_tokens, "token"), count(limits.max_num_seqs, "request")
    return Said(
        None,
        f"the limits of a step are now {tokens} (max_num_batched_tokens) and {seqs} (max_num_seqs)",
        "limits change",
    )


TELLERS: Tellers = {
    ev.ConfigChanged: _limits_changed,
    ev.ScheduleRequest: _row,
    ev.ScheduleSkipped: _skipped,
    ev.SchedulePreempted: _preempted,
    ev.StepScheduled: _planned,
    ev.RequestStatusChanged: _turned,
}
