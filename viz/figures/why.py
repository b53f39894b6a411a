"""Why?: every decision of a step in order, in plain words, with the line of code that made it."""

from __future__ import annotations

from sim.timeline import StepView
from viz.figures.html import Html
from viz.figures.parts import Selection, empty, panel


def why(view: StepView, selection: Selection) -> Html:
    """Draw the reasons."""
    return panel("why", "Why?", "every decision of this step, in order", empty("soon"))
