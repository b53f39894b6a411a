"""The app: `streamlit run viz/app.py`, or `orrery app`."""

from __future__ import annotations

import streamlit as st

from viz.pages import frame, gallery, live, step

st.set_page_config(page_title="Orrery", page_icon="🪐", layout="wide", initial_sidebar_state="collapsed")
frame.hide_chrome()
st.session_state["pages"] = pages = {
    "step": st.Page(step.page, title="Orrery", url_path="step", default=True),
    "gallery": st.Page(gallery.page, title="Traces · Orrery", url_path="traces"),
    "live": st.Page(live.page, title="Live run · Orrery", url_path="live"),
}
st.navigation(list(pages.values()), position="hidden").run()
