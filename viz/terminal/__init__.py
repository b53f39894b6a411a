"""Traces as text: `orrery trace FILE` and `orrery trace FILE --step N`.

`cli.py` the command · `summary.py` a whole trace · `step.py` one step, made of `scheduler.py`, `kv_memory.py`,
`forward_pass.py` and `why.py`, which are pure functions from a step to something `rich` can print · `words.py` names,
colours and numbers. Every drawing says the same without colour. Imports `sim`, `engine.trace` and `rich`.
"""
