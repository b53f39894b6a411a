"""The views of the app: which question each answers, and the panels that answer it.

A view is one entry here; the tabs, the number keys, the address and the stage all read this registry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sim.timeline import StepView, Timeline
from viz.figures.chunked_prefill import chunked_prefill
from viz.figures.engine_map import engine_map
from viz.figures.forward_pass import forward_pass
from viz.figures.guided import guided
from viz.figures.html import Html
from viz.figures.invariants import invariants
from viz.figures.kv_memory import kv_memory
from viz.figures.latency import latency
from viz.figures.life_lines import life_lines
from viz.figures.parts import Selection
from viz.figures.preemption_story import preemption_story
from viz.figures.prefix_graph import prefix_graph
from viz.figures.raw_events import raw_events
from viz.figures.replay_panel import replay_panel
from viz.figures.roofline import roofline
from viz.figures.scheduler import requests, scheduler
from viz.figures.speculation import speculation
from viz.figures.statistics import statistics
from viz.figures.why import why

Panel = Callable[[Timeline, StepView, Selection], Html]
#: A view shows one step, or the whole run with the step marked in it.
Group = Literal["step", "run"]
GROUPS: dict[Group, str] = {"step": "this step", "run": "the whole run"}


@dataclass(frozen=True)
class View:
    """What a person may look at; `name` stands in the address."""

    name: str
    title: str
    question: str
    group: Group
    panels: tuple[Panel, ...]


def _of_step(figure: Callable[[StepView, Selection], Html]) -> Panel:
    """A figure that needs nothing but its step, as a panel."""

    def draw(_: Timeline, view: StepView, selection: Selection) -> Html:
        return figure(view, selection)

    return draw


_SCHEDULER, _REQUESTS, _KV, _FORWARD, _WHY, _EVENTS = map(
    _of_step, (scheduler, requests, kv_memory, forward_pass, why, raw_events)
)

#: The first nine have the keys 1 to 9.
VIEWS: dict[str, View] = {
    view.name: view
    for view in (
        View("all", "All", "what happened in this step?", "step", (_SCHEDULER, _KV, _WHY, _FORWARD)),
        View("scheduler", "Scheduler", "who computes how much, and who waits?", "step", (_SCHEDULER, _REQUESTS, _WHY)),
        View("kv", "KV memory", "which block holds what, and which is free?", "step", (_KV, _WHY)),
        View("forward", "Forward pass", "what does the model read, and what comes out?", "step", (_FORWARD, _WHY)),
        View("engine", "Engine map", "which parts of the engine had work?", "step", (engine_map, _WHY)),
        View("guided", "Guided", "which tokens does the grammar allow?", "step", (guided, _WHY)),
        View("speculation", "Speculation", "which drafts were accepted, and why?", "step", (speculation, _WHY)),
        View("prefix", "Prefix cache", "what can be found again, and who found it?", "step", (prefix_graph, _WHY)),
        View("events", "Raw events", "what does the trace say, line by line?", "step", (_EVENTS,)),
        View("chunks", "Tokens", "how do prompts share the steps with decodes?", "run", (chunked_prefill,)),
        View("latency", "Latency", "how long did requests wait for their tokens?", "run", (latency,)),
        View("roofline", "Roofline", "is a step bound by memory or by arithmetic?", "run", (roofline,)),
        View("statistics", "Statistics", "how full was the engine over time?", "run", (statistics,)),
        View("life", "Life lines", "what did each request wait for?", "run", (life_lines,)),
        View("preemption", "Preemption", "who lost its blocks, why, and at what cost?", "run", (preemption_story,)),
        View("checks", "Checks", "are all rules kept, and does it replay?", "run", (invariants, replay_panel)),
    )
}
DEFAULT = "all"
