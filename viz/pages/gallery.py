"""Choose a trace: one that shows a situation worth seeing, or a file of your own."""

from __future__ import annotations

import tempfile
from pathlib import Path

import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

from engine.errors import OrreryError, TraceError
from viz import address
from viz.components.board import board
from viz.figures.gallery import card, cards
from viz.figures.html import Html, el
from viz.figures.masthead import masthead, notice
from viz.gallery import GALLERY, Situation
from viz.open_trace import open_timeline, path_of
from viz.undrawn import in_a_sentence

#: Of the session: what was uploaded or written, and why it could not be opened.
_UPLOAD, _PATH, _REFUSED = "upload", "path", "refused"


def page() -> None:
    """The page; also what is shown, with a sentence, where another was asked for that does not exist."""
    unknown = address.unknown_page()
    show(*([notice(unknown, error=True)] if unknown else []))


def show(*notices: Html) -> None:
    """Draw the traces to choose from, beneath what has to be said."""
    header = masthead("open a trace", None, None, view=None, notices=notices)
    board({"header": header, "stage": _situations()}, on_act=address.follow, key="gallery")
    left, right = st.columns(2)
    left.file_uploader(
        "Or a trace of your own",
        type=["jsonl", "zst"],
        help="A .jsonl or .jsonl.zst file",
        key=_UPLOAD,
        on_change=_open_upload,
    )
    right.text_input(
        "Or the path of one on this machine", placeholder="run.jsonl", key=_PATH, on_change=_open_written_path
    )
    if refused := st.session_state.pop(_REFUSED, None):
        st.error(refused)


def _situations() -> Html:
    intro = el(
        "p", "intro", "Each of these is a real run of the engine, recorded step by step. Open one and step along."
    )
    return el("div", "", intro, cards([_card(each) for each in GALLERY]))


def _card(each: Situation) -> Html:
    try:
        timeline, _ = open_timeline(each.name)
    except TraceError as error:
        return notice(str(error), error=True)
    return card(each.name, each.title, each.words, timeline.summary(), timeline.series)


def _open_upload() -> None:
    """An uploaded trace is kept in a file, so that it has an address like any other."""
    uploaded: UploadedFile | None = st.session_state[_UPLOAD]
    if uploaded is None:
        return
    try:
        path = Path(tempfile.mkdtemp(prefix="orrery-upload-")) / Path(uploaded.name).name
        path.write_bytes(uploaded.getvalue())
    except (OSError, ValueError) as error:
        st.session_state[_REFUSED] = f"The trace {uploaded.name} cannot be kept on this machine: {error}."
    else:
        _open_checked(str(path))


def _open_written_path() -> None:
    if path := st.session_state[_PATH].strip():
        _open_checked(path)


def _open_checked(path: str) -> None:
    """Address a trace, unless it is none; what is wrong then is said beside the field."""
    try:
        with in_a_sentence():
            file = path_of(path).absolute()
            open_timeline(str(file))
    except OrreryError as error:
        st.session_state[_REFUSED] = str(error)
    else:
        address.go_to("step", trace=str(file))
