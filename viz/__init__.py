"""The app and what draws in the terminal: a trace, step by step, with the reason beside every decision.

`figures` are pure functions from a step to HTML, `pages` and `components` put them on a Streamlit page, `terminal`
draws the same steps as text. Reads `sim` and `engine.trace`; never imports torch (a live run is another process).
"""
