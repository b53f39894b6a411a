"""Step through a trace."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.errors import TraceError
from engine.trace import events as ev
from sim.timeline import StepView, Timeline
from viz import address, gallery
from viz.components.board import board
from viz.figures.finder import finder, jumps
from viz.figures.html import Html, el
from viz.figures.masthead import action, masthead, notice, recording, story, verdict
from viz.figures.parts import Selection
from viz.figures.quiz import teaser
from viz.figures.spine import spine
from viz.figures.stage import stage
from viz.open_trace import FileVersion, open_timeline
from viz.open_trace import verdict as replay_verdict
from viz.pages import gallery as gallery_page
from viz.pages import moves
from viz.proofs import takes_long
from viz.quiz.course import questions_of_step
from viz.search import Search
from viz.undrawn import in_a_sentence
from viz.views import DEFAULT


def page() -> None:
    """The page; without a trace in the address, that of the command line, or the first thing worth seeing."""
    show(address.trace_name(sys.argv[1] if len(sys.argv) > 1 else gallery.DEFAULT))


def show(name: str) -> None:
    """Draw a trace at the step that the address names; if it cannot be drawn, say why and offer others."""
    try:
        timeline, version = open_timeline(name)
        draw(name, timeline, version)
    except TraceError as error:
        gallery_page.show(notice(str(error), error=True))


def draw(
    name: str,
    timeline: Timeline,
    version: FileVersion,
    *actions: Html,
    growing: bool = False,
    newest: bool = False,
    on_act: Callable[[dict[str, Any]], None] = address.follow,
) -> None:
    """Draw one step of an opened trace.

    Args:
        actions: buttons of the page.
        growing: the trace is still being written.
        newest: show the newest step if the address names none.
        on_act: told what a person did.
    """
    selection, shipped = address.selection(), gallery.situation(name)
    step, notices = _step(name, timeline, newest)
    if shipped is not None:
        notices.insert(0, story(shipped.title, shipped.words))
    if timeline.trace.truncated and not growing:
        notices.append(notice(timeline.trace.truncated))
    header = masthead(
        name.rsplit("/", 1)[-1],
        timeline.header,
        recording() if growing else _verdict(timeline, version, asked=selection.asked),
        *actions,
        view=selection.view,
        notices=tuple(notices),
    )
    parts: dict[str, str] = {"header": header}
    if step is None:
        parts["stage"] = action("Open another trace", "page:gallery", "one that shows a situation worth seeing")
    else:
        view = timeline.step(step)
        drawn = _with_request(selection, view)
        if selection.request not in timeline.life_lines:
            selection = drawn  # else one moves along with the selected request, also where it is not there yet
        parts |= _moving(timeline, step, selection) | {"stage": stage(timeline, view, drawn)}
        if selection.view == DEFAULT and not newest:
            parts["stage"] += _next_question(timeline, step)

    def act_on(act: dict[str, Any]) -> None:
        if step is not None and "predict" in act:
            address.go_to_quiz(name, step + 1, answer=int(act["predict"]))
        elif step is None or not moves.make(act, timeline, step, selection):
            on_act(act)

    steps = timeline.steps or [0]
    board(parts, first=steps[0], last=steps[-1], step=step or 0, growing=growing, on_act=act_on)


def _next_question(timeline: Timeline, step: int) -> str:
    """What the next step is going to decide, as a question; nothing if there is none."""
    try:
        with in_a_sentence():
            asked = questions_of_step(timeline.step(step + 1)) if step < timeline.steps[-1] else []
    except TraceError:
        return ""  # an impossible step says so itself, once it is shown
    # Those that need more than what is on the page have no place beneath it.
    fitting = [each for each in asked if each.question.given is None and "automaton" not in each.question.sights]
    return teaser(fitting[0]) if fitting else ""


def _moving(timeline: Timeline, step: int, selection: Selection) -> dict[str, str]:
    """The parts with which one moves about."""
    sought = moves.sought(timeline)
    matches = (sought.steps or ()) if isinstance(sought, Search) else ()
    return {
        "spine": spine(timeline.series, matches, jumps(timeline, selection)),
        "finder": finder(address.find(), sought, step, moves.said(step)),
    }


def _step(name: str, timeline: Timeline, newest: bool) -> tuple[int | None, list[Html]]:
    """The step to draw, and what has to be said about it."""
    if not timeline.steps:
        return None, [notice("This trace holds no step yet.")]
    wanted = address.step_number()
    first, last = timeline.steps[0], timeline.steps[-1]
    if wanted is None:
        shipped = gallery.situation(name)
        return (last if newest else shipped.step if shipped else first), []
    if isinstance(wanted, int) and first <= wanted <= last:
        return wanted, []
    nearest = max(first, min(last, wanted)) if isinstance(wanted, int) else first
    return nearest, [notice(f"There is no step {wanted}: this trace holds steps {first} to {last}.")]


def _with_request(selection: Selection, view: StepView) -> Selection:
    """With nobody selected, the first request that is in the middle of something."""
    try:
        planned = view.planned
    except TraceError:
        return selection  # the panels say why there is no such state
    if selection.request in planned.requests:
        return selection
    masked = [serial for e in view.events if isinstance(e, ev.GrammarBitmaskFilled) for serial in e.requests]
    if selection.view == "guided" and masked:
        return replace(selection, request=masked[0])
    rows = planned.plan.rows if planned.plan else {}
    prefills = [serial for serial, row in rows.items() if row.phase == "prefill"]
    chosen = next(iter([*prefills[-1:], *rows]), None)
    return replace(selection, request=chosen)


def _verdict(timeline: Timeline, version: FileVersion, *, asked: bool) -> Html:
    if takes_long(timeline) and not asked:
        tip = "run the scheduler again on the recorded inputs and compare its decisions: a minute for a large trace"
        return action("Replay", "asked:yes", tip)
    try:
        report = replay_verdict(version)
    except TraceError as error:
        return el("span", "verdict", "replay: not possible", data_tip=str(error))
    return verdict(report.num_decisions, report.num_divergences, cut_short=report.truncated is not None)
