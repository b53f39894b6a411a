"""Pieces that Streamlit does not have: the board, which draws HTML and reports what was clicked in it."""
