"""Why?: every decision of a step in order, with the function that made it."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from viz.cut import UNPLANNED
from viz.explain import Reason
from viz.source import ROOT, Place
from viz.terminal.words import chip, one_line, panel


def why(reasons: list[Reason], *, planned: bool) -> RenderableType:
    """Draw the reasons; bookkeeping that follows from a decision is drawn faint."""
    cut = [] if planned else [Text(UNPLANNED, "yellow")]
    if not reasons:
        return panel("Why?", "nothing was decided in this step" if planned else UNPLANNED)
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(no_wrap=True, justify="right")
    for reason in reasons:
        name = chip(reason.request) if reason.request is not None else Text("")
        table.add_row(name, Text(one_line(reason.sentence), "dim" if reason.detail else ""), _link(reason.place))
    return panel("Why?", "every decision of this step, in order, and the function that made it", table, *cut)


def _link(place: Place) -> Text:
    short = f"{place.path.removeprefix('engine/core/')}:{place.line}"
    return Text.assemble((short, f"dim link file://{ROOT / place.path}"))
