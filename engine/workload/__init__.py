"""Workloads: what a benchmark asks an engine for, read from public formats and from files of token ids.

`request.py` what one request is · `token_ids.py`, `sharegpt.py`, `custom.py` one file format each · `synthetic.py`
prompts that are made up · `reading.py` what the readers share. A reader takes whatever needs a tokenizer as a function,
and whatever is random as a generator; so nothing here imports torch, reads a clock or draws a number of its own. A bad
file is told of by one sentence with the place and the reason.
"""
