"""Scheduler: the two queues, who got how many tokens of the step's budget, and what stopped the others."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.messages import RequestStatus
from engine.trace import events as ev
from sim.state import RequestState, State
from sim.timeline import StepView
from viz.cut import NOBODY_WAITS_YET, UNDECIDED, UNPLANNED, is_planned, plan_of, undecided
from viz.explain import WAITS_FOR, shortage, work_on_blocks
from viz.figures.html import Html, el
from viz.figures.parts import Selection, chip, count, empty, label, panel
from viz.theme import request_class

_CUT_BY = {
    "token_budget": "cut by budget",
    "long_prefill_token_threshold": "cut by long_prefill_token_threshold",
    "max_model_len": "cut by max_model_len",
}
_WAITS_BECAUSE = {
    "token_budget": "no budget left in this step",
    "max_num_seqs": "as many run as max_num_seqs allows",
    "no_free_blocks": "too few free blocks",
    "preemption": "nobody new in a step that preempted",
    "waiting_for_grammar": WAITS_FOR[RequestStatus.WAITING_FOR_FSM],
    "waiting_for_remote_kvs": WAITS_FOR[RequestStatus.WAITING_FOR_REMOTE_KVS],
}
_ADMITTED = {"running": "", "new": "new", "resumed": "back"}

#: Rows drawn beside the other panels, and when the panel has the page to itself.
_ROWS, _ROWS_ALONE = 7, 64
_WAITING, _WAITING_ALONE = 3, 16

#: Tokens that fill a bar when nobody wants more, so that a lone decode looks as small as it is.
_NARROWEST_SCALE = 24


def scheduler(view: StepView, selection: Selection) -> Html:
    """Draw who runs in a step and who waits, with the reason."""
    alone = selection.view == "scheduler"
    return panel(
        "scheduler",
        "Scheduler",
        "who runs in this step, and who has to wait",
        label("running"),
        _running(view, selection, _ROWS_ALONE if alone else _ROWS),
        _preempted(view, selection),
        label("waiting"),
        _waiting(view, selection, _WAITING_ALONE if alone else _WAITING),
        _finished(view, selection),
        _limits(view),
    )


# --- running ----------------------------------------------------------------------------------------------------


def _running(view: StepView, selection: Selection, limit: int) -> Html:
    rows = list(_plan_rows(view).values())
    planned, without_share = is_planned(view), undecided(view)
    if planned and not rows:
        return empty("Nobody: this step has nothing to compute.")
    # With many rows the prefills tell the story; what is left out is counted.
    shown = set(sorted(range(len(rows)), key=lambda i: (rows[i].phase == "decode", i))[:limit])
    widest = max([_NARROWEST_SCALE, *(row.num_wanted_tokens for row in rows)])
    drawn = [_row(row, selection, widest) for i, row in enumerate(rows) if i in shown]
    left_out = [row for i, row in enumerate(rows) if i not in shown]
    if left_out:
        tokens = sum(row.num_scheduled_tokens for row in left_out)
        drawn.append(el("div", "more", f"… {len(left_out)} more, {count(tokens, 'token')}"))
    drawn += [_undecided(serial, selection) for serial in without_share[:limit]]
    if len(without_share) > limit:
        drawn.append(el("div", "more", f"… {len(without_share) - limit} more"))
    return el("div", "rows", *drawn, None if planned else empty(UNPLANNED))


def _undecided(serial: int, selection: Selection) -> Html:
    return el(
        "div",
        f"row {request_class(serial)}",
        chip(serial, selected=selection.request == serial),
        el("span", "why", UNDECIDED),
        data_undecided=serial,
    )


def _row(row: ev.ScheduleRequest, selection: Selection, widest: int) -> Html:
    admitted = _ADMITTED[row.admission]
    return el(
        "div",
        f"row {request_class(row.request)}",
        chip(row.request, selected=selection.request == row.request),
        el("span", "phase", row.phase, el("em", "", admitted) if admitted else None),
        _token_bar(row, widest),
        el("span", "note", *_notes(row)),
        data_row=row.request,
        data_tokens=row.num_scheduled_tokens,
    )


def _token_bar(row: ev.ScheduleRequest, widest: int) -> Html:
    """Solid: the tokens it got. Outline: what it wanted."""
    wanted = 100 * row.num_wanted_tokens / widest
    got = 100 * row.num_scheduled_tokens / row.num_wanted_tokens if row.num_wanted_tokens else 0
    bar = el("span", "wanted", el("i", "", style=f"width:{got:.1f}%"), style=f"width:{wanted:.1f}%")
    return el("span", "tokens", bar, el("b", "", row.num_scheduled_tokens))


def _notes(row: ev.ScheduleRequest) -> list[Html]:
    notes = []
    if row.truncated_by is not None:
        notes.append(f"of {row.num_wanted_tokens}, {_CUT_BY[row.truncated_by]}")
    if row.num_cached_tokens:
        notes.append(f"{row.num_cached_tokens} cached")
    if row.num_remote_tokens:
        notes.append(f"{row.num_remote_tokens} from another engine")
    return [el("span", "", note) for note in notes]


# --- preempted, waiting, finished -------------------------------------------------------------------------------


def _preempted(view: StepView, selection: Selection) -> Html | None:
    victims = [event for event in view.events if isinstance(event, ev.SchedulePreempted)]
    if not victims:
        return None
    rows = [
        el(
            "div",
            f"row {request_class(event.victim)}",
            chip(event.victim, hollow=True, selected=selection.request == event.victim),
            el("span", "why", f"loses {count(event.num_computed_tokens, 'token')} of KV: {_needed(event)}"),
            data_preempted=event.victim,
        )
        for event in victims
    ]
    return el("div", "rows", label(el("span", "bad", "▼ preempted")), *rows)


def _needed(event: ev.SchedulePreempted) -> str:
    who = "it" if event.for_request == event.victim else f"r{event.for_request}"
    return f"{who} {shortage(event.needed, event.available)}"


def _waiting(view: StepView, selection: Selection, limit: int) -> Html:
    waiting = view.planned.waiting
    planned = is_planned(view)
    if not waiting:
        return empty("Nobody." if planned else f"{NOBODY_WAITS_YET.capitalize()}.")
    reasons = {event.request: _reason(event) for event in _plan_skipped(view)}
    rows, ahead = [], None
    for serial in waiting[:limit]:
        waits_for = WAITS_FOR.get(view.planned.requests[serial].status)
        unsaid = (f"behind {ahead}" if ahead else "") if planned else UNDECIDED
        why = reasons.get(serial) or waits_for or unsaid
        ahead = f"r{serial}"
        rows.append(
            el(
                "div",
                f"row {request_class(serial)}",
                chip(serial, hollow=True, selected=selection.request == serial, tip=f"why does r{serial} wait?"),
                el("span", "why", why),
                data_waiting=serial,
            )
        )
    if len(waiting) > limit:
        rows.append(el("div", "more", f"… {len(waiting) - limit} more behind"))
    return el("div", "rows", *rows)


def _reason(event: ev.ScheduleSkipped) -> str:
    if event.reason == "no_free_blocks":
        return shortage(event.needed, event.available)
    return _WAITS_BECAUSE[event.reason]


def _finished(view: StepView, selection: Selection) -> Html | None:
    ends = [event for event in view.events if isinstance(event, ev.RequestFinished)]
    if not ends:
        return None
    rows = [
        el(
            "div",
            f"row {request_class(event.request)}",
            chip(event.request, selected=selection.request == event.request),
            el("span", "why", f"{_END[event.finish_reason]} after {count(event.num_output_tokens, 'token')}"),
            data_finished=event.request,
        )
        for event in ends
    ]
    return el("div", "rows", label(el("span", "good", "● finished by this step")), *rows)


_END = {
    "stop": "reached its end",
    "length": "reached its length limit",
    "abort": "was aborted",
    "error": "failed",
}


# --- limits -----------------------------------------------------------------------------------------------------


def _limits(view: StepView) -> Html:
    """The budget of the step, split by request, and the seats."""
    plan = plan_of(view)
    budget = plan.token_budget if plan else 0
    parts = [
        el(
            "i",
            request_class(serial),
            style=f"width:{100 * row.num_scheduled_tokens / budget:.2f}%",
            data_budget=serial,
            data_tokens=row.num_scheduled_tokens,
            data_tip=f"r{serial}: {count(row.num_scheduled_tokens, 'token')}",
        )
        for serial, row in _plan_rows(view).items()
    ]
    used = plan.num_scheduled_tokens if plan else 0
    seats = view.planned.scheduler.max_num_seqs
    return el(
        "div",
        "limits",
        el("span", "", "budget", data_tip="tokens that one step may compute: max_num_batched_tokens"),
        el("span", "budget", *parts),
        el("b", "", f"{used:,} / {budget:,}"),
        el("span", "", "seats", data_tip="requests that may run at once: max_num_seqs"),
        el("span", "budget", *_seats(view.planned, seats)),
        el("b", "", f"{len(view.planned.running):,} / {seats:,}"),
        data_used=used,
        data_total=budget,
    )


def _seats(state: State, seats: int) -> list[Html]:
    width = f"width:{100 / seats:.2f}%"
    return [el("i", request_class(serial), style=width, data_seat=serial) for serial in state.running]


def _plan_rows(view: StepView) -> dict[int, ev.ScheduleRequest]:
    plan = plan_of(view)
    return plan.rows if plan else {}


def _plan_skipped(view: StepView) -> list[ev.ScheduleSkipped]:
    plan = plan_of(view)
    return plan.skipped if plan else []


# --- every request ----------------------------------------------------------------------------------------------


def requests(view: StepView, selection: Selection, limit: int = 40) -> Html:
    """Draw every request so far: what it was asked, what it has answered, how far its tokens are computed."""
    everyone = sorted(view.after.requests.values(), key=lambda r: (r.finished, r.serial))
    cards = [_card(request, view.after, selection) for request in everyone[:limit]]
    if len(everyone) > limit:
        cards.append(el("div", "more", f"… {len(everyone) - limit} more"))
    subtitle = "what was asked, what came back so far, and how many of its tokens are computed"
    return panel("requests", "Requests", subtitle, *(cards or [empty("No request has arrived yet.")]))


def _text(state: State, token_ids: Sequence[int], most: int) -> str:
    """The end of a text, on one line, so short that a card has room for it."""
    cut = "…" if len(token_ids) > most else ""
    return cut + "".join(map(state.piece_text, token_ids[-most:])).replace("\n", " ⏎ ")


def _card(request: RequestState, state: State, selection: Selection) -> Html:
    prompt, answer = _text(state, request.prompt_token_ids, 20), _text(state, request.output_token_ids, 40)
    done = request.num_computed_tokens / max(1, request.num_tokens)
    status = request.finish_reason or request.status.value
    if request.sending or request.receiving:
        status += f", being {work_on_blocks(sending=request.sending, receiving=request.receiving)}"
    return el(
        "div",
        f"card {request_class(request.serial)}",
        chip(request.serial, hollow=not request.holds_blocks, selected=selection.request == request.serial),
        el("p", "text", el("span", "prompt", prompt), el("span", "answer", answer)),
        el("span", "status", f"{status} · {request.num_computed_tokens} / {request.num_tokens} computed"),
        el("span", "wanted", el("i", "", style=f"width:{100 * done:.1f}%")),
        data_card=request.serial,
    )
