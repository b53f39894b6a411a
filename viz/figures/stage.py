"""The stage: the panels of a view, side by side."""

from __future__ import annotations

from sim.timeline import StepView
from viz.figures.forward_pass import forward_pass
from viz.figures.html import Html, el
from viz.figures.kv_memory import kv_memory
from viz.figures.parts import Selection
from viz.figures.scheduler import requests, scheduler
from viz.figures.why import why

_PANELS = {
    "all": (scheduler, kv_memory, why, forward_pass),
    "scheduler": (scheduler, requests, why),
    "kv": (kv_memory, why),
    "forward": (forward_pass, why),
}


def stage(view: StepView, selection: Selection) -> Html:
    """Draw what a person has chosen to see of a step."""
    return el("div", f"stage {selection.view}", *(draw(view, selection) for draw in _PANELS[selection.view]))
