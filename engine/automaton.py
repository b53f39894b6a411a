"""The automaton of a grammar, as a picture needs it: numbered states, and edges that carry characters.

It is plain data: `engine.guided.explorer` draws it up, the trace carries it, whoever follows an output steps along it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

#: First and last code point of a run of characters, both included.
Range = tuple[int, int]

MAX_CODE_POINT = 0x10FFFF

_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", " ": "␣"}


class Edge(msgspec.Struct, frozen=True, array_like=True):
    """A step from one state to another."""

    source: Annotated[int, Meta(description="state it leaves")]
    target: Annotated[int, Meta(description="state it enters")]
    characters: Annotated[
        tuple[Range, ...], Meta(description="code points it reads: first and last of each run, in order")
    ]

    @property
    def label(self) -> str:
        """What it reads, as a regular expression would say it: `a`, `[a-z0-9]`, `[^"]`."""
        return label_of(self.characters)


class Automaton(msgspec.Struct, frozen=True, kw_only=True):
    """What the texts of a grammar look like, one character at a time; deterministic, state 0 is the start.

    No two states allow the same continuations. A grammar with more states than the limit is drawn as far as that goes:
    then one state stands for everything beyond.
    """

    num_states: Annotated[int, Meta(description="states are 0 (the start) to num_states - 1")]
    accepting: Annotated[tuple[int, ...], Meta(description="states in which the text may end")]
    edges: Annotated[tuple[Edge, ...], Meta(description="steps as [source, target, [[first, last], …]], by source")]
    beyond: Annotated[
        int | None, Meta(description="the state that stands for all that was not drawn; null: all is drawn")
    ] = None


def label_of(characters: Iterable[Range]) -> str:
    """Runs of characters in the way of a regular expression; the shorter of what is in and what is out."""
    runs = list(characters)
    if len(runs) == 1 and runs[0][0] == runs[0][1]:
        return _shown(runs[0][0], in_class=False)
    others = complement(runs)
    if not others:
        return "any"
    inside, outside = "".join(map(_run, runs)), "".join(map(_run, others))
    return f"[^{outside}]" if len(outside) < len(inside) else f"[{inside}]"


def complement(characters: Iterable[Range]) -> list[Range]:
    """The runs of code points between those of a sorted list."""
    gaps: list[Range] = []
    at = 0
    for first, last in characters:
        if first > at:
            gaps.append((at, first - 1))
        at = last + 1
    if at <= MAX_CODE_POINT:
        gaps.append((at, MAX_CODE_POINT))
    return gaps


def _run(run: Range) -> str:
    first, last = run
    if first == last:
        return _shown(first)
    between = "" if last == first + 1 else "-"
    return f"{_shown(first)}{between}{_shown(last)}"


def _shown(code_point: int, *, in_class: bool = True) -> str:
    char = chr(code_point)
    if char in _ESCAPES:
        return _ESCAPES[char]
    if in_class and char in "\\]^-":
        return f"\\{char}"
    if char.isprintable():
        return char
    return f"\\x{code_point:02x}" if code_point < 0x100 else f"\\u{code_point:04x}"
