"""The gallery: situations worth seeing, each a trace that comes with Orrery. `traces/make.py` records them."""

from __future__ import annotations

from typing import NamedTuple


class Situation(NamedTuple):
    """One trace, and where to look in it."""

    name: str
    title: str
    words: str
    step: int
    view: str = "all"


GALLERY = (
    Situation(
        "first-token",
        "The first token",
        "One prompt, one request. Its prompt is computed in one step, and the first word comes out of it.",
        step=1,
    ),
    Situation(
        "mixed-batch",
        "Prefill and decode in one step",
        "New prompts are computed in the same steps in which older requests get their next word.",
        step=4,
    ),
    Situation(
        "prefix-hit",
        "A prefix hit",
        "A new request begins like an older one: it shares the older one's blocks instead of computing them again.",
        step=10,
    ),
    Situation(
        "chunked-prefill",
        "A long prompt in chunks",
        "A long prompt does not hold up the others: each step takes a chunk of it, next to everyone's next word.",
        step=5,
    ),
    Situation(
        "eviction",
        "A cached block is given away",
        "The pool is small: blocks whose content could still be found are handed out, oldest first, and lose it.",
        step=17,
    ),
    Situation(
        "preemption",
        "A request loses its blocks",
        "No block is free, so the request that came last gives all of its back, and is computed again later.",
        step=21,
    ),
    Situation(
        "head-of-line",
        "A long prompt holds up the line",
        "Without chunking, one prompt fills the whole budget of a step: the one behind it has to wait.",
        step=4,
    ),
    Situation(
        "fsm-choice",
        "A choice of two words",
        "Only Positive or Negative may be said: an automaton masks every token that would lead anywhere else.",
        step=2,
    ),
    Situation(
        "json-schema",
        "JSON that fits a schema",
        "The output is JSON by a schema: the grammar allows the braces and keys, the model chooses the values.",
        step=9,
    ),
    Situation(
        "spec-ngram",
        "Drafts found in the prompt",
        "The last tokens stood there before: what followed them then is proposed, and judged in one step.",
        step=13,
    ),
    Situation(
        "spec-draft",
        "A small model drafts",
        "A smaller model guesses three tokens; the large one accepts them from the left until one is rejected.",
        step=4,
    ),
    Situation(
        "crowded",
        "Everything at once",
        "Six requests of four priorities in a pool for two: shared prefixes, drafts, grammars, chunks, preemptions.",
        step=10,
    ),
)

DEFAULT = "prefix-hit"


def situation(name: str) -> Situation | None:
    """The situation of that name."""
    return next((each for each in GALLERY if each.name == name), None)
