"""The app: `streamlit run viz/app.py`, or `orrery app`."""

from __future__ import annotations

import streamlit as st

from engine.errors import OrreryError
from viz import address
from viz.figures.masthead import notice
from viz.pages import frame, gallery, live, quiz, step, what_if
from viz.undrawn import in_a_sentence

st.set_page_config(page_title="Orrery", page_icon="🪐", layout="wide", initial_sidebar_state="collapsed")
frame.hide_chrome()
# Pages are told apart by `?page=…`: Streamlit's own page paths ask for resources that are not there when one is
# opened by a link.
pages = {"step": step.page, "gallery": gallery.page, "live": live.page, "what-if": what_if.page, "quiz": quiz.page}
try:
    with in_a_sentence():
        pages[address.page()]()
except OrreryError as error:
    gallery.show(notice(str(error), error=True))
