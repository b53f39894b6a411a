"""Steps against tokens: how each step's budget was shared, one colour per request."""

from __future__ import annotations

from engine.trace import events as ev
from sim.timeline import StepView, Timeline
from viz.figures.chart import bar, chart, line
from viz.figures.html import Html, el
from viz.figures.parts import Selection, chip, count, empty, panel
from viz.theme import request_class

#: Steps drawn around the current one; more would be thinner than a line.
STEPS = 60
#: Chips drawn of the requests in these steps.
_CHIPS = 24


def chunked_prefill(timeline: Timeline, view: StepView, selection: Selection) -> Html:
    """Draw the steps around the current one as stacked bars beneath the line of the budget."""
    title, words = "Tokens of each step", "the budget of a step is shared by decodes and pieces of prompts"
    steps = _around(timeline.steps, view.step)
    rows = _rows(timeline, steps)
    if not any(rows.values()):
        return panel("chunked-prefill", title, words, empty("No step of this trace has computed a token yet."))
    first = timeline.steps.index(steps[0])
    budgets = {facts.step: facts.token_budget for facts in timeline.series[first : first + len(steps)]}
    budget = max(budgets.values())
    most = max(sum(row.num_scheduled_tokens for row in of_step) for of_step in rows.values())
    top = budget if 3 * most > budget else most * 1.25
    width = 100 / len(steps)
    marks = [part for i, step in enumerate(steps) for part in _stack(rows[step], i * width, width, top, step)]
    now = el("span", "now", style=bar(steps.index(view.step) * width, width, 0, 100), data_now=view.step)
    heights = [100 * budgets.get(step, budget) / top for step in steps]
    corners = [(i * width, height) for at, height in enumerate(heights) for i in (at, at + 1)]
    limit = line(corners, "limit", data_limit=budgets.get(view.step))
    ticks = [(0.0, "0"), (50.0, f"{top / 2:.0f}"), (100.0, f"{top:.0f}")]
    serials = list(dict.fromkeys(row.request for of_step in rows.values() for row in of_step))
    return panel(
        "chunked-prefill",
        title,
        words,
        chart("step", "tokens", ticks, (f"step {steps[0]}", f"step {steps[-1]}"), now, *marks, limit),
        el("p", "more", _budget_words(sorted(set(budgets.values())), top)),
        el("div", "chips", *(chip(serial, selected=serial == selection.request) for serial in serials[:_CHIPS])),
        _chunks(rows, selection),
        aside="solid: pieces of prompts · faint: decodes",
    )


def _budget_words(budgets: list[int], top: float) -> str:
    if len(budgets) > 1:
        return f"max_num_batched_tokens, the line, was changed during the run: {budgets[0]:,} to {budgets[-1]:,}"
    where = "the line at the top" if top == budgets[0] else "far above what any of these steps used"
    return f"max_num_batched_tokens = {budgets[0]:,}: {where}"


def _around(steps: list[int], step: int) -> list[int]:
    first = max(0, min(steps.index(step) - STEPS // 2, len(steps) - STEPS))
    return steps[first : first + STEPS]


def _rows(timeline: Timeline, steps: list[int]) -> dict[int, list[ev.ScheduleRequest]]:
    return {step: list(rows_of(timeline.step(step)).values()) for step in steps}


def rows_of(view: StepView) -> dict[int, ev.ScheduleRequest]:
    """Rows of a step by serial, without those that a preemption took back."""
    rows: dict[int, ev.ScheduleRequest] = {}
    for event in view.events:
        if isinstance(event, ev.ScheduleRequest):
            rows[event.request] = event
        elif isinstance(event, ev.SchedulePreempted):
            rows.pop(event.victim, None)
    return rows


def _stack(rows: list[ev.ScheduleRequest], left: float, width: float, top: float, step: int) -> list[Html]:
    bottom, parts = 0.0, []
    for row in rows:
        height = 100 * row.num_scheduled_tokens / top
        parts.append(
            el(
                "button",
                f"share {row.phase} {request_class(row.request)}",
                style=bar(left + width * 0.1, width * 0.8, bottom, height),
                data_act=f"step:{step}",
                data_share=row.request,
                data_step_of=step,
                data_tokens=row.num_scheduled_tokens,
                data_tip=f"step {step}: r{row.request} {row.phase}, {count(row.num_scheduled_tokens, 'token')}",
            )
        )
        bottom += height
    return parts


def _chunks(rows: dict[int, list[ev.ScheduleRequest]], selection: Selection) -> Html | None:
    pieces = [
        row.num_scheduled_tokens
        for of_step in rows.values()
        for row in of_step
        if row.request == selection.request and row.phase == "prefill"
    ]
    if len(pieces) < 2:
        return None
    return el("p", "more", f"r{selection.request} is computed in {len(pieces)} pieces: {' + '.join(map(str, pieces))}")
