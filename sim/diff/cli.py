"""`orrery diff`: where two runs part, or how two moments differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Argument, Exit, Option

from engine.errors import QueryError
from engine.metrics.table import comparison_table
from sim.diff.runs import FirstDifference, RunDiff, diff_runs
from sim.diff.states import Changed, StateDiff, diff_states
from sim.event_table import two_events
from sim.field_differences import FieldDifference
from sim.open_with_bar import open_with_bar
from sim.timeline import Timeline

#: Requests and blocks that are named, of many.
_SHOWN = 20


def diff(
    first: Annotated[Path, Argument(metavar="TRACE", help="A trace file, .jsonl or .jsonl.zst.")],
    second: Annotated[Path | None, Argument(metavar="[OTHER]", help="The trace to compare it with.")] = None,
    step: Annotated[int | None, Option(help="Compare the states in which both traces plan this step.")] = None,
    steps: Annotated[
        tuple[int, int] | None, Option(help="Compare two steps, of one trace or of the first and the second.")
    ] = None,
) -> None:
    """Compare two runs: the first decision that differs, then what became of the requests. Or two steps."""
    if step is not None and steps is not None:
        raise QueryError("Name one step with --step, or two with --steps.")
    if second is None and steps is None:
        raise QueryError("A trace is compared with another one, or two of its steps with --steps 5 9.")
    console = Console(highlight=False)
    here = open_with_bar(first)
    there = here if second is None else open_with_bar(second)
    pair = steps or (None if step is None else (step, step))
    if pair is not None:
        states = here.step(pair[0]).planned, there.step(pair[1]).planned
        _show_states(console, diff_states(*states), f"step {pair[0]}", f"step {pair[1]}")
        return
    result = diff_runs(here, there)
    assert second is not None
    _show_runs(console, result, *_names(first, second), here, there)
    raise Exit(int(not result.is_same))


def _names(first: Path, second: Path) -> tuple[str, str]:
    return (first.name, second.name) if first.name != second.name else (str(first), str(second))


def _show_runs(console: Console, result: RunDiff, first: str, second: str, here: Timeline, there: Timeline) -> None:
    for timeline in (here, there):
        if timeline.trace.truncated:
            console.print(Text(timeline.trace.truncated, "yellow"))
    if result.config:
        console.print(Text("Settings that differ", "bold"))
        console.print(_fields(result.config, first, second))
        console.print()
    for kind, difference in (("input", result.input), ("decision", result.decision)):
        _show_first(console, kind, difference, first, second)
    if result.requests:
        console.print(Text(f"Requests that fared otherwise: {len(result.requests)}", "bold"))
        console.print(_changed([Changed(f"r{r.serial}", r.fields) for r in result.requests], first, second))
        console.print()
    for name, only in ((first, result.only_first), (second, result.only_second)):
        if only:
            console.print(f"Only in {name}: {_few(only)}\n")
    summaries = {name: line.summary().metrics.summarise() for name, line in ((first, here), (second, there))}
    console.print(comparison_table(summaries))
    if result.is_same:
        console.print(Text("\nThe same inputs, and the same decisions.", "bold green"))


def _show_first(console: Console, kind: str, difference: FirstDifference | None, first: str, second: str) -> None:
    if difference is None:
        return
    console.print(
        Text(
            f"The first {kind} that differs, in step {difference.step} after {difference.num_equal:,} equal ones: "
            f"{difference.why}",
            "bold",
        )
    )
    console.print(two_events((first, difference.first), (second, difference.second)))
    console.print()


def _show_states(console: Console, result: StateDiff, first: str, second: str) -> None:
    if result.is_same:
        console.print(Text("Nothing differs.", "bold green"))
        return
    for title, fields in (("Queues", result.queues), ("Pool", result.pool)):
        if fields:
            console.print(Text(title, "bold"))
            console.print(_fields(fields, first, second))
            console.print()
    for title, changed in (("Requests", result.requests), ("Blocks", result.blocks)):
        if changed:
            console.print(Text(f"{title} that differ: {len(changed)}", "bold"))
            console.print(_changed(changed, first, second))
            console.print()


def _fields(fields: Sequence[FieldDifference], first: str, second: str) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 2))
    for head in ("", first, second):
        table.add_column(head)
    for each in fields:
        table.add_row(Text(each.field, "dim"), _value(each.first), _value(each.second))
    return table


def _changed(changed: Sequence[Changed], first: str, second: str) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 2))
    for head in ("", "", first, second):
        table.add_column(head)
    for each in changed[:_SHOWN]:
        for index, field in enumerate(each.fields):
            name = each.name if index == 0 else ""
            table.add_row(name, Text(field.field.replace("_", " "), "dim"), _value(field.first), _value(field.second))
    if len(changed) > _SHOWN:
        table.add_row("…", Text(f"and {len(changed) - _SHOWN} more", "dim"), "", "")
    return table


def _value(value: object) -> str:
    if value is None:
        return "–"
    return _few(list(map(str, value))) if isinstance(value, list) else str(value)


def _few(words: Sequence[str]) -> str:
    if not words:
        return "none"
    return " ".join(words[:12]) + (f" … ({len(words)})" if len(words) > 12 else "")
