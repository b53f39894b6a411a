"""The board: one Streamlit component that draws the figures' HTML and reports what a person did to it.

A figure is a string of HTML; what can be clicked in it carries `data-act="name:value"`, or several of these with `&`
between them, and a click arrives here as `{"name": "value"}`. Stepping, scrubbing and playing arrive as
`{"step": number}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import streamlit as st

from viz import address
from viz.theme import request_css

_HERE = Path(__file__).parent
_PARTS = ("header", "spine", "finder", "stage")
_STYLES = ("board", "charts", "what_if", "finder", "lives", "quiz", "why", "events", "checks", "memory")
_HTML = (
    '<div class="board">'
    + "".join(f'<div data-part="{part}"></div>' for part in _PARTS)
    + '</div><div class="tip" role="tooltip" hidden></div>'
    + '<dialog class="help source" aria-label="code"></dialog>'
    + (_HERE / "help.html").read_text(encoding="utf-8")
)

_mount = st.components.v2.component(
    "orrery.board",
    html=_HTML,
    css=request_css() + "".join((_HERE / f"{name}.css").read_text(encoding="utf-8") for name in _STYLES),
    js=(_HERE / "board.js").read_text(encoding="utf-8"),
)


def board(
    parts: Mapping[str, str],
    *,
    first: int = 0,
    last: int = 0,
    step: int = 0,
    growing: bool = False,
    on_act: Callable[[dict[str, Any]], None],
    key: str = "board",
) -> None:
    """Draw the board.

    Args:
        parts: HTML of the parts `header`, `spine`, `finder` and `stage`; one left out is empty.
        first, last: the steps there are.
        step: the step that is drawn.
        growing: more steps may come, so playing waits at the last one.
        on_act: called, before the next run of the page, with what the person did.
    """

    def report() -> None:
        act = st.session_state[key].get("act")
        if act:
            on_act(act)

    _mount(
        key=key,
        data={
            "parts": {part: parts.get(part, "") for part in _PARTS},
            "first": first,
            "last": last,
            "step": step,
            "growing": growing,
            "theme": address.theme(),
            "find": address.find(),
        },
        on_act_change=report,
    )
