"""Predict, then reveal: questions that are made from a trace, about what a step is going to decide.

`question.py` what a question is · `scheduling.py`, `memory.py`, `sampling.py` the kinds of question, each a function of
one step · `course.py` which questions a trace is asked · `answers.py` what a person has answered. Right is what the
trace recorded: nothing is decided here, and the same trace is asked the same questions. Reads `sim` and `viz.explain`.
"""
