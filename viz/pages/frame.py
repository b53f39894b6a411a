"""What every page does alike: hide Streamlit's own frame."""

from __future__ import annotations

import streamlit as st

_CHROME = """
<style>
  .stApp > header, [data-testid="stHeader"] { background: none; height: 0; min-height: 0; pointer-events: none; }
  [data-testid="stDecoration"], [data-testid="stStatusWidget"], [data-testid="stToolbar"], footer { display: none; }
  [data-testid="stMainBlockContainer"] { max-width: 1480px; padding: 12px 24px 24px; }
  [data-testid="stMainBlockContainer"] [data-testid="stVerticalBlock"] { gap: 12px; }
  [data-testid="stElementContainer"]:has(> [data-testid="stHtml"] style) { display: none; }
  [data-stale="true"] { opacity: 1 !important; transition: none !important; }
  @media (max-width: 700px) { [data-testid="stMainBlockContainer"] { padding: 8px 10px 20px; } }
</style>
"""


def hide_chrome() -> None:
    """Streamlit's header, footer and its fading of what is being redrawn would come between a person and the page."""
    st.html(_CHROME)
