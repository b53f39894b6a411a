"""The address, `?page=…&trace=…&step=…&view=…&req=…&block=…`: the only place where a person's position is kept.

So every position can be sent as a link, and the browser's back button goes back in the trace.
"""

from __future__ import annotations

import re
from typing import Any, Literal, get_args

import streamlit as st

from viz.figures.parts import Selection
from viz.views import DEFAULT, VIEWS

Page = Literal["step", "gallery", "live"]
_INTEGER = re.compile(r"-?[0-9]{1,15}")
_MOST_SHOWN = 40
_PAGES: tuple[Page, ...] = get_args(Page)


def page() -> Page:
    """The page to show: stepping through a trace unless another one is asked for, the gallery if there is no such."""
    asked = st.query_params.get("page", "step")
    return next((known for known in _PAGES if known == asked), "gallery")


def unknown_page() -> str | None:
    """A page that is asked for and does not exist, in one sentence."""
    asked = st.query_params.get("page", "step")
    return None if asked in _PAGES else f"There is no page {asked}: the pages are {', '.join(_PAGES)}."


def go_to(page: Page, **parameters: str) -> None:
    """Address another page; what the address said before is forgotten."""
    if page != "step":
        parameters["page"] = page
    st.query_params.from_dict(parameters)


def trace_name(default: str) -> str:
    """The trace to show."""
    return st.query_params.get("trace") or default


def step_number() -> int | str | None:
    """The step to show, as it was written if that is no number; None if none is asked for."""
    written = st.query_params.get("step")
    if written is None:
        return None
    number = _integer(written)
    return _shortened(written) if number is None else number


def selection() -> Selection:
    """View, request and block; what is not understood is left out."""
    view = st.query_params.get("view", DEFAULT)
    return Selection(view=view if view in VIEWS else DEFAULT, request=_number("req"), block=_number("block"))


def follow(act: dict[str, Any]) -> None:
    """Change the address as an act of the board says: `{"step": 3}`, `{"request": "1"}`, `{"page": "live"}` …"""
    if "page" in act:
        go_to(act["page"])
        return
    for name, value in act.items():
        parameter = {"request": "req"}.get(name, name)
        if parameter not in ("step", "view", "req", "block"):
            continue
        toggled_off = parameter in ("req", "block") and st.query_params.get(parameter) == str(value)
        if value == "none" or toggled_off:
            st.query_params.pop(parameter, None)
        else:
            st.query_params[parameter] = str(value)


def _number(parameter: str) -> int | None:
    number = _integer(st.query_params.get(parameter, "").removeprefix("r"))
    return None if number is None or number < 0 else number


def _integer(written: str) -> int | None:
    """The number that is written; None if it is none, or longer than any that a trace counts to."""
    return int(written) if _INTEGER.fullmatch(written) else None


def _shortened(written: str) -> str:
    return written if len(written) <= _MOST_SHOWN else written[:_MOST_SHOWN] + "…"
