"""Figures: pure functions from a step of a trace, and what a person has selected in it, to a string of HTML.

They read `sim` and import no Streamlit, so that a notebook or a page of documentation can use them as well. Whatever
can be checked in a figure stands in its `data-…` attributes.
"""
