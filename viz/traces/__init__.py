"""Traces that come with Orrery, and the script that records them."""
