"""`orrery trace`: a trace, or one step of it, in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from sim.open_with_bar import open_with_bar

#: A drawing is made for this width at most: lines that cross a wide screen are hard to follow.
_WIDEST = 120


def trace(
    trace_file: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace file, .jsonl or .jsonl.zst.")],
    step: Annotated[int | None, typer.Option(help="Draw this step instead of the summary.", show_default=False)] = None,
) -> None:
    """Summarise a trace, or draw one step of it in the terminal."""
    from viz.terminal.step import step_view
    from viz.terminal.summary import trace_view

    timeline = open_with_bar(trace_file)
    drawing = (
        trace_view(trace_file.name, timeline)
        if step is None
        else step_view(trace_file.name, timeline.step(step), timeline.steps[-1])
    )
    console = Console(highlight=False)
    if step is not None and timeline.trace.truncated:
        console.print(Text(timeline.trace.truncated, "yellow"))
    console.print(drawing, width=min(console.width, _WIDEST))
