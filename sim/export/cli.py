"""`orrery export`: a trace in the format of another tool."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from engine.trace.open_file import open_trace

#: Kinds of events that are named when they are left out.
_MOST_NAMED = 6


def export(
    trace_file: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace file, .jsonl or .jsonl.zst.")],
    to: Annotated[str, typer.Option(help="perfetto, csv, parquet, otlp-json or vllm-kv-events.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file, or for tables the folder. [default: named after the trace]"),
    ] = None,
) -> None:
    """Write a trace in the format of another tool."""
    from sim.export.formats import default_place, format_named
    from sim.export.formats import export as run_export

    format = format_named(to)
    place = output or default_place(trace_file, format)
    trace = open_trace(trace_file)
    report = run_export(format, trace.header, trace.events, place)
    console = Console(highlight=False, soft_wrap=True)
    if trace.truncated:
        console.print(Text(trace.truncated, "yellow"))
    console.print(Text(f"{place}: {_counted(report.written) or 'nothing'}"))
    if report.left_out:
        console.print(Text(f"Left out, for which {to} has no place: {_counted(report.left_out)}", "dim"))


def _counted(things: Counter[str]) -> str:
    common = [f"{count:,} {thing}" for thing, count in things.most_common(_MOST_NAMED)]
    rest = things.total() - sum(count for _, count in things.most_common(_MOST_NAMED))
    return ", ".join([*common, *([f"{rest:,} others"] if rest else [])])
