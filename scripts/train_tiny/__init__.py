"""How `orrery-tiny` and its draft model are made: a text generator, a tokenizer trainer and a training loop.

Everything here runs once, on one CPU core, and its results are shipped in `engine/models/shipped/`. Nothing in the
engine imports it. The text is written by this package itself, so it carries the project's own licence.
"""
