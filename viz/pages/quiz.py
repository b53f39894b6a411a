"""Predict, then reveal: a trace asks what its steps are going to decide."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import streamlit as st

from engine.errors import TraceError
from sim.timeline import Timeline
from viz import address, gallery
from viz.components.board import board
from viz.figures.html import Html
from viz.figures.masthead import action, masthead, notice
from viz.figures.parts import Selection
from viz.figures.quiz import quiz, result
from viz.open_trace import FileVersion, open_timeline
from viz.pages import gallery as gallery_page
from viz.quiz.answers import Answers
from viz.quiz.course import Asked, questions_of_run, questions_of_step

_NOTHING = "This trace has nothing to ask: no step of it was planned to its end. Another one has, such as those here."


def page() -> None:
    """The page: questions about the whole trace, or about one step if the address names one."""
    name = address.trace_name(sys.argv[1] if len(sys.argv) > 1 else gallery.DEFAULT)
    try:
        timeline, version = open_timeline(name)
        course, notices = _course(timeline, version)
        if course:
            _draw(name, timeline, course, notices)
        else:
            gallery_page.show(notice(_NOTHING))
    except TraceError as error:
        gallery_page.show(notice(str(error), error=True))


def _course(timeline: Timeline, version: FileVersion) -> tuple[list[Asked], list[Html]]:
    """The questions to ask, and what has to be said about them."""
    step = address.step_number()
    if step is None:
        return _of_run(version, timeline), []
    about = questions_of_step(timeline.step(step)) if isinstance(step, int) and step in timeline.steps else []
    if about:
        return about, []
    return _of_run(version, timeline), [notice(f"Step {step} has nothing to ask: these are questions about the run.")]


@st.cache_resource(max_entries=8, show_spinner="Looking for questions …")
def _of_run(version: FileVersion, _timeline: Timeline) -> list[Asked]:
    return questions_of_run(_timeline)


def _draw(name: str, timeline: Timeline, course: list[Asked], notices: list[Html]) -> None:
    questions = [asked.question for asked in course]
    answers = Answers.read(address.answers(), questions)
    place = min(max(address.question_number() or 1, 1), len(course) + 1) - 1
    back = action("Step through it", "page:step", "back to the trace, step by step")
    header = masthead(
        f"quiz: {name.rsplit('/', 1)[-1]}", timeline.header, None, back, view=None, notices=tuple(notices)
    )
    if place == len(course):
        stage = result(course, answers)
    else:
        selection = _selection(course[place], answered=answers.chosen[place] is not None)
        stage = quiz(timeline.step(questions[place].step), course, place, answers, selection)

    def on_act(act: dict[str, Any]) -> None:
        _on_act(act, name, course, place, answers)

    board({"header": header, "stage": stage}, on_act=on_act, key="quiz")


def _selection(asked: Asked, *, answered: bool) -> Selection:
    """What the address says; once answered, what the question was about, which may have been the answer."""
    chosen, question = address.selection(), asked.question
    if not answered:
        return chosen
    request = question.request if chosen.request is None else chosen.request
    return replace(chosen, request=request, block=question.block if chosen.block is None else chosen.block)


def _on_act(act: dict[str, Any], name: str, course: list[Asked], place: int, answers: Answers) -> None:
    match act:
        case {"answer": written}:
            answers = answers.answer(place, int(written))
            address.go_to_question(place + 1, str(answers))
        case {"next": _}:
            address.go_to_question(place + 2, str(answers))
        case {"question": written}:
            address.go_to_question(int(written), str(answers))
        case {"again": _}:
            address.go_to_question(1, "")
        case {"see": _}:
            question = course[place].question
            marked = {"req": question.request, "block": question.block}
            selected = {parameter: str(value) for parameter, value in marked.items() if value is not None}
            address.go_to("step", trace=name, step=str(question.step), view=question.view, **selected)
        case {"page": "step"}:
            address.go_to("step", trace=name)
        case _:
            address.follow(act)
