"""Scheduler: who runs in a step with how many tokens, who waits, and what the budget was spent on."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from engine.trace import events as ev
from sim.plan import PlanState
from sim.timeline import StepView
from viz.cut import NOBODY_WAITS_YET, UNDECIDED, UNPLANNED, is_planned, plan_of, undecided
from viz.explain import why_waits
from viz.terminal.words import chip, filled_style, line_style, panel

_LABEL = 7
_BAR = 24
_BUDGET = 60
_MOST_WAITING = 8
_ADMITTED = {"running": "", "new": "new", "resumed": "resumed"}


def scheduler(view: StepView) -> RenderableType:
    """Draw the queues and the budget of a step."""
    drawn = [_running(view), *_undecided(view), _waiting(view)]
    if plan := plan_of(view):
        budget = _grid(["dim", "", ""])
        budget.add_row("budget", _Budget(plan), f"{plan.num_scheduled_tokens:,} / {plan.token_budget:,} tokens")
        drawn.append(budget)
    return panel("Scheduler", "who runs in this step, and who has to wait", *drawn)


def _running(view: StepView) -> RenderableType:
    plan = plan_of(view)
    rows = plan.rows.values() if plan else ()
    if not rows:
        return Text("nobody runs: nothing is to be computed", "dim") if is_planned(view) else Group()
    table = _grid(["dim", "", "", "dim", "", ""])
    most = max(row.num_wanted_tokens for row in rows)
    for place, row in enumerate(rows):
        amount = f"{row.num_scheduled_tokens:,}"
        if row.truncated_by:
            amount += f" of {row.num_wanted_tokens:,}, cut by {row.truncated_by}"
        elif row.num_cached_tokens:
            amount += f", {row.num_cached_tokens:,} more were cached"
        if row.num_remote_tokens and not row.truncated_by:
            amount += f", {row.num_remote_tokens:,} came from another engine"
        label = "running" if place == 0 else ""
        table.add_row(label, chip(row.request), row.phase, _ADMITTED[row.admission], _bar(row, most), amount)
    return table


def _undecided(view: StepView) -> Iterator[RenderableType]:
    """Of a plan that was cut short: who runs, with what is not known, and why not."""
    if is_planned(view):
        return
    table = _grid(["dim", "", "dim"])
    for serial in undecided(view):
        table.add_row("", chip(serial), UNDECIDED)
    yield table
    yield Text(UNPLANNED, "yellow")


def _bar(row: ev.ScheduleRequest, most: int) -> Text:
    wanted = max(1, round(_BAR * row.num_wanted_tokens / max(most, _BAR)))
    got = max(1, round(wanted * row.num_scheduled_tokens / row.num_wanted_tokens))
    return Text.assemble(("█" * got, line_style(row.request)), ("░" * (wanted - got), line_style(row.request)))


def _waiting(view: StepView) -> RenderableType:
    """Who waits, why, and since when."""
    planned = view.planned
    if not planned.waiting:
        return Text("waiting  nobody" if is_planned(view) else f"waiting  {NOBODY_WAITS_YET}", "dim")
    table = _grid(["dim", "", ""])
    for place, serial in enumerate(planned.waiting[:_MOST_WAITING]):
        wait = why_waits(view, serial)
        words = Text.assemble(wait.sentence, (f"\n{wait.since}", "dim")) if wait else Text(UNDECIDED, "dim")
        table.add_row("waiting" if place == 0 else "", chip(serial), words)
    if len(planned.waiting) > _MOST_WAITING:
        table.add_row("", "", Text(f"… and {len(planned.waiting) - _MOST_WAITING:,} more", "dim"))
    return table


class _Budget:
    """The budget as a bar: every row's share in its colour, named where there is room."""

    def __init__(self, plan: PlanState) -> None:
        self._plan = plan

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        filling = "▬" if console.no_color or console.color_system is None else " "
        bar, end, spent = Text(), 0, 0
        for row in self._plan.rows.values():
            start, spent = end, spent + row.num_scheduled_tokens
            end = max(start + 1, round(_BUDGET * spent / self._plan.token_budget))
            name = f"r{row.request}" if len(f"r{row.request}") < end - start else ""
            bar.append(name.center(end - start, filling), filled_style(row.request))
        yield bar.append("·" * (_BUDGET - end), "dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(_BUDGET, max(_BUDGET, len(self._plan.rows)))


def _grid(styles: list[str]) -> Table:
    table = Table.grid(padding=(0, 2))
    for place, style in enumerate(styles):
        table.add_column(style=style, no_wrap=place < len(styles) - 1, width=_LABEL if place == 0 else None)
    return table
