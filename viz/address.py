"""The address, `?page=…&trace=…&step=…&view=…&req=…&block=…&find=…&theme=…`: where a person is, and kept nowhere else.

So every position can be sent as a link, and the browser's back button goes back in the trace.
"""

from __future__ import annotations

import re
from typing import Any, Literal, get_args

import streamlit as st

from viz.figures.parts import Selection
from viz.gallery import situation
from viz.theme import Theme
from viz.views import DEFAULT, VIEWS

Page = Literal["step", "gallery", "live", "quiz", "what-if"]
_INTEGER = re.compile(r"-?[0-9]{1,15}")
_MOST_SHOWN = 40
_PAGES: tuple[Page, ...] = get_args(Page)
#: Pages about a trace: who comes from one of them stays with it.
_OF_A_TRACE: tuple[Page, ...] = ("step", "quiz", "what-if")
#: A second click takes these back.
_SELECTED = ("req", "block", "only", "event")
_THEMES: tuple[Theme, ...] = get_args(Theme)


def page() -> Page:
    """The page to show: stepping through a trace unless another one is asked for, the gallery if there is no such."""
    asked = st.query_params.get("page", "step")
    return next((known for known in _PAGES if known == asked), "gallery")


def unknown_page() -> str | None:
    """A page that is asked for and does not exist, in one sentence."""
    asked = st.query_params.get("page", "step")
    return None if asked in _PAGES else f"There is no page {_shortened(asked)}: the pages are {', '.join(_PAGES)}."


def go_to(page: Page, **parameters: str) -> None:
    """Address another page; what the address said before is forgotten, but for the theme."""
    if page != "step":
        parameters["page"] = page
    if chosen := theme():
        parameters["theme"] = chosen
    st.query_params.from_dict(parameters)


def trace_name(default: str) -> str:
    """The trace to show."""
    return st.query_params.get("trace") or default


def step_number() -> int | str | None:
    """The step to show, as it was written if that is no number; None if none is asked for."""
    written = st.query_params.get("step")
    if written is None:
        return None
    number = integer(written)
    return _shortened(written) if number is None else number


def selection() -> Selection:
    """What a person has chosen to look at; what is not understood is left out."""
    view = st.query_params.get("view", DEFAULT)
    return Selection(
        view=view if view in VIEWS else DEFAULT,
        request=_number("req"),
        block=_number("block"),
        only=st.query_params.get("only"),
        event=_number("event"),
        asked="asked" in st.query_params,
    )


def find() -> str:
    """What is looked for, as a person typed it; empty if nothing is."""
    return st.query_params.get("find", "").strip()


def look_for(text: str) -> None:
    """Address what is looked for; nothing, if the text is empty."""
    if text.strip():
        st.query_params["find"] = text.strip()
    else:
        st.query_params.pop("find", None)


def select(*, request: int | None = None, block: int | None = None) -> None:
    """Address a request or a block, or both; what is not named stays as it is."""
    if request is not None:
        st.query_params["req"] = str(request)
    if block is not None:
        st.query_params["block"] = str(block)


def go_to_step(step: int) -> None:
    """Address a step of the trace that is shown."""
    st.query_params["step"] = str(step)


def question_number() -> int | None:
    """The question of a quiz, from 1; None if none is asked for."""
    return _number("question")


def answers() -> str:
    """The answers that a quiz has got, as it writes them down."""
    return st.query_params.get("answers", "")


def go_to_quiz(trace: str, step: int, *, answer: int) -> None:
    """Address the questions about a step, with the first one answered by a choice, counted from 0."""
    go_to("quiz", trace=trace, step=str(step), question="1", answers=str(answer + 1))


def go_to_question(number: int, answers: str) -> None:
    """Address a question of the quiz that is shown; nothing is marked any more in its figures."""
    st.query_params["question"] = str(number)
    st.query_params["answers"] = answers
    for parameter in ("req", "block"):
        st.query_params.pop(parameter, None)


def theme() -> Theme | None:
    """The theme to show; None: the one that the browser wishes."""
    asked = st.query_params.get("theme")
    return next((known for known in _THEMES if known == asked), None)


def follow(act: dict[str, Any]) -> None:
    """Change the address as an act of the board says: `{"step": 3}`, `{"request": "1"}`, `{"page": "live"}` …

    What is selected already, such as a request, is selected no more; so is what is called `none`.
    """
    if "open" in act:
        chosen = situation(act["open"])
        if chosen is not None:
            go_to("step", trace=chosen.name, step=str(chosen.step), view=chosen.view)
        return
    if "page" in act:
        stays = act["page"] in _OF_A_TRACE and page() in _OF_A_TRACE and "trace" in st.query_params
        here = _here() if stays else {}
        if act["page"] == "quiz":  # the step that is shown has been seen: a quiz asks about the whole run
            here.pop("step", None)
        go_to(act["page"], **here)
        return
    for name, value in act.items():
        parameter = {"request": "req"}.get(name, name)
        if parameter not in (*_SELECTED, "step", "view", "asked", "theme"):
            continue
        toggled_off = parameter in _SELECTED and st.query_params.get(parameter) == str(value)
        if value == "none" or toggled_off:
            st.query_params.pop(parameter, None)
        else:
            st.query_params[parameter] = str(value)


def _here() -> dict[str, str]:
    """The trace that is shown, and the step."""
    return {name: st.query_params[name] for name in ("trace", "step") if name in st.query_params}


def _number(parameter: str) -> int | None:
    number = integer(st.query_params.get(parameter, "").removeprefix("r"))
    return None if number is None or number < 0 else number


def integer(written: str) -> int | None:
    """The number that is written; None if it is none, or longer than any that a trace counts to."""
    return int(written) if _INTEGER.fullmatch(written) else None


def _shortened(written: str) -> str:
    return written if len(written) <= _MOST_SHOWN else written[:_MOST_SHOWN] + "…"
