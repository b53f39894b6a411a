"""Why: every decision of a step in plain words, each with its rule and the place in the code that decided it.

Pure functions from events to sentences. A sentence does not name its request: whoever draws it puts the name before
it, in the colour of the request.

`rules.py` the rules and where they stand · `telling.py` what a sentence is made from · `scheduling.py`, `memory.py`,
`output.py` the sentences · `reasons.py` all of them, in order · `waiting.py` why one request waits · `words.py` how
numbers are said.

::

    for reason in explain(timeline.step(17)):
        print(reason.name, reason.sentence, reason.place)      # r2 46 of 71 tokens: the budget of 48 had 46 left …
"""

from viz.explain.reasons import NO_DECISION, TELLERS, Phase, Reason, explain
from viz.explain.rules import RULES, Rule
from viz.explain.waiting import Wait, why_waits
from viz.explain.words import WAITS_FOR, shortage, work_on_blocks

__all__ = [
    "NO_DECISION",
    "RULES",
    "TELLERS",
    "WAITS_FOR",
    "Phase",
    "Reason",
    "Rule",
    "Wait",
    "explain",
    "shortage",
    "why_waits",
    "work_on_blocks",
]
