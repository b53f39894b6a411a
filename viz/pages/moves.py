"""Searching and jumping: what a person does that only the trace can answer. The answer is a step in the address."""

from __future__ import annotations

from typing import Any

import streamlit as st

from engine.errors import OrreryError, TraceError
from sim.timeline import Timeline
from viz import address
from viz.figures.parts import Selection
from viz.jumps import Jump, Landing, land
from viz.search import Search, search
from viz.undrawn import in_a_sentence

_LANDED = "landed"


def sought(timeline: Timeline) -> Search | str | None:
    """What the address says is looked for; why it means nothing, in one sentence; None if nothing is looked for."""
    text = address.find()
    if not text:
        return None
    try:
        with in_a_sentence():
            found = search(timeline, text)
            _ = found.steps  # all that it finds is marked in the spine
            return found
    except OrreryError as error:
        return str(error)


def said(step: int) -> str:
    """What the last jump had to say, as long as the step is shown where it ended."""
    landed: Landing | None = st.session_state.get(_LANDED)
    return landed.words if landed is not None and landed.step == step else ""


def make(act: dict[str, Any], timeline: Timeline, step: int, selection: Selection) -> bool:
    """Make the move that an act asks for: `{"find": "preempted"}`, `{"jump": "next change", "from": 12}`.

    Args:
        act: what a person did.
        timeline: of the trace.
        step: the step that is shown; an act may say that the person has moved on since.
        selection: what is selected, if only because nothing else is.

    Returns:
        whether it asks for one.
    """
    st.session_state.pop(_LANDED, None)
    start = act.get("from")
    start = start if isinstance(start, int) and start in timeline.steps else step
    match act:
        case {"find": str(text)}:
            _look_for(text, str(act.get("towards", "next")), timeline, start, selection)
        case {"jump": str(written)} if jump := Jump.read(written):
            _go(jump, timeline, start, selection)
        case _:
            return False
    return True


def _look_for(text: str, towards: str, timeline: Timeline, start: int, selection: Selection) -> None:
    address.look_for(text)
    found, jump = sought(timeline), Jump.read(f"{towards} match")
    if not isinstance(found, Search):
        return
    address.select(request=found.request, block=found.block)
    if jump is not None:
        _go(jump, timeline, start, selection)


def _go(jump: Jump, timeline: Timeline, start: int, selection: Selection) -> None:
    found = sought(timeline)
    if isinstance(found, str):
        return  # the sentence that says why stands beside the field
    try:
        with in_a_sentence():
            landing = land(jump, timeline, start, selection, found)
    except TraceError as error:
        landing = Landing(start, str(error))
    st.session_state[_LANDED] = landing
    address.go_to_step(landing.step)
