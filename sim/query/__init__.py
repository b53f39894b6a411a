"""Questions to a trace: in which step does something hold, and when did a block or a request last change?

`names.py` lists what a question may name, `predicate.py` reads it, `find.py` looks for the steps, `changes.py` goes
through the past and the future of one block or one request. Imports the rest of `sim` and `engine.trace`.
"""
