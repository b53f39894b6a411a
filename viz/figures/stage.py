"""The stage: the panels of a view, side by side."""

from __future__ import annotations

from sim.timeline import StepView, Timeline
from viz.figures.html import Html, el
from viz.figures.parts import Selection
from viz.views import VIEWS


def stage(timeline: Timeline, view: StepView, selection: Selection) -> Html:
    """Draw what a person has chosen to see of a step."""
    shown = VIEWS[selection.view]
    panels = (draw(timeline, view, selection) for draw in shown.panels)
    return el("div", f"stage of-{shown.group} {shown.name}", *panels)
