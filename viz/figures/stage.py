"""The stage: the panels of a view, side by side."""

from __future__ import annotations

from collections.abc import Iterable

from engine.errors import TraceError
from sim.timeline import StepView, Timeline
from viz.figures.html import Html, el
from viz.figures.parts import Selection, empty, panel
from viz.undrawn import in_a_sentence
from viz.views import VIEWS


def stage(timeline: Timeline, view: StepView, selection: Selection) -> Html:
    """Draw what a person has chosen to see of a step; what an impossible trace does not let one draw is said."""
    shown = VIEWS[selection.view]
    panels, reasons = [], dict[str, None]()
    for draw in shown.panels:
        try:
            with in_a_sentence():
                panels.append(draw(timeline, view, selection))
        except TraceError as error:
            reasons[str(error)] = None
    if reasons:
        panels.append(_undrawn(reasons, whole=not panels))
    return el("div", f"stage of-{shown.group} {shown.name}", *panels)


def _undrawn(reasons: Iterable[str], *, whole: bool) -> Html:
    """In place of panels: why they are missing, and what can still be looked at."""
    what = "this view" if whole else "some of this view"
    return panel(
        "undrawn",
        "Cannot be drawn",
        f"{what} needs a state that the trace does not lead to",
        *map(empty, reasons),
        el(
            "p",
            "ways-on",
            el("button", "action", "Check every rule", data_act="view:checks", data_tip="which rule is broken first"),
            el("button", "action", "Read the events", data_act="view:events", data_tip="what the trace says here"),
        ),
    )
