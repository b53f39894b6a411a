"""Fifty prompts of many kinds: some repeat themselves, some never do."""

from __future__ import annotations

_OPENINGS = [
    "Once upon a time there was",
    "The capital of France is",
    "Day 14: The wind",
    "Hello, my name is",
    "A lighthouse keeper",
    "The moon",
    "Mix everything well, and",
    "Question: why is the sky blue?\nAnswer:",
    "Every morning",
    "In the old tower",
]
_NAMES = "one two three four five six seven eight nine ten"

PROMPTS = [
    *_OPENINGS,
    *(f"{opening} {opening}" for opening in _OPENINGS),
    *(f"{opening}. {_NAMES}. {_NAMES}. one two" for opening in _OPENINGS),
    *(f"{opening}: " + "the sun and the moon and " * times for times, opening in enumerate(_OPENINGS, start=1)),
    *(letter * 12 for letter in "abcdefghij"),
]
assert len(PROMPTS) == 50
