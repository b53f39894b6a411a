"""The app: `streamlit run viz/app.py`, or `orrery app`."""

from __future__ import annotations

import streamlit as st

from viz import address
from viz.pages import frame, gallery, live, quiz, step, what_if

st.set_page_config(page_title="Orrery", page_icon="🪐", layout="wide", initial_sidebar_state="collapsed")
frame.hide_chrome()
# Pages are told apart by `?page=…`: Streamlit's own page paths ask for resources that are not there when one is
# opened by a link.
{"step": step.page, "gallery": gallery.page, "live": live.page, "what-if": what_if.page, "quiz": quiz.page}[
    address.page()
]()
