"""Who runs in a step, and what came of it.

`scheduler.py` tells the story of a step · `admission.py` what a waiting request still waits for · `wanted.py` how many
tokens a request gets · `plan.py` the plan of a step and the only way to take a row back · `update.py` what the
executor's output does to the requests · `stop.py` when a request has reached its end. May be imported by `engine.core`.
"""
