"""The table that `orrery check` prints."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from sim.invariants.checker import CheckReport

#: Violations written out; one fault often shows at many events.
_SHOWN = 12


def render(report: CheckReport, *, verbose: bool = False) -> RenderableType:
    """Every invariant with a mark, then the violations, then the verdict.

    Args:
        report: what a check found.
        verbose: each invariant on a line of its own, with its statement and the number of events it looked at.
    """
    from sim.invariants.checker import INVARIANTS

    if not verbose:
        hint = Text("· had nothing to look at in this trace; --verbose says what each of them states", "dim")
        return Group(_marks(report), hint, "", *_violations(report), _verdict(report))

    broken = Counter(violation.invariant for violation in report.violations)
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="center")
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    table.add_row("", Text("invariant", "dim"), Text("looks", "dim"), "")
    for invariant in INVARIANTS:
        looks = report.num_looks[invariant.name]
        mark = Text("✗", "bold red") if broken[invariant.name] else Text("✓", "green") if looks else Text("·", "dim")
        table.add_row(mark, invariant.name, f"{looks:,}" if looks else "–", invariant.statement)
    return Group(table, "", *_violations(report), _verdict(report))


def _marks(report: CheckReport) -> RenderableType:
    from sim.invariants.checker import INVARIANTS

    broken = {violation.invariant for violation in report.violations}
    marks = [
        Text.assemble(
            ("✗ ", "bold red") if i.name in broken else ("✓ ", "green") if report.num_looks[i.name] else "· "
        ).append(i.name)
        for i in INVARIANTS
    ]
    return Columns(marks, padding=(0, 3), column_first=True)


def _violations(report: CheckReport) -> list[Text]:
    lines = [
        Text.assemble(
            ("✗ ", "bold red"),
            (violation.invariant, "bold"),
            f" at event {violation.seq} (step {violation.step}): ",
            violation.sentence,
            ".",
        )
        for violation in report.violations[:_SHOWN]
    ]
    if len(report.violations) > _SHOWN:
        lines.append(Text(f"  … and {len(report.violations) - _SHOWN:,} more", "dim"))
    if report.stopped_at is not None:
        lines.append(Text(f"  Nothing behind event {report.stopped_at} was checked.", "dim"))
    return lines


def _verdict(report: CheckReport) -> Text:
    verdict = f"{report.num_events:,} events, {len(report.violations):,} violations"
    return Text(verdict, "bold red" if report.violations else "bold green")
