"""The code that decided: a rule, and the source of its function as it is in the engine that runs here."""

from __future__ import annotations

from functools import cache

from viz.explain import Rule
from viz.figures.html import Html, el
from viz.source import ROOT, Place

#: A longer function is cut, and says so.
_MOST_LINES = 70


@cache
def code(rule: Rule) -> Html:
    """A rule, and its function with line numbers, in a `<template>` that the board shows when it is asked to."""
    place = rule.place
    lines = _function(place)
    numbered = [_line(number, text) for number, text in lines[:_MOST_LINES]]
    if len(lines) > _MOST_LINES:
        numbered.append(el("p", "more", f"… {len(lines) - _MOST_LINES} more lines"))
    head = el("h2", "", place.symbol), el("p", "rule", rule.statement), el("p", "sub", str(place))
    close = el("button", "action", "Close", data_close=True)
    return el("template", "", *head, *numbered, close, data_source=str(place))


def _line(number: int, text: str) -> Html:
    return el("div", "code-line", el("span", "number", number), el("code", "", text))


def _function(place: Place) -> list[tuple[int, str]]:
    """The lines of a function: those after its `def` that are further in than it."""
    lines = (ROOT / place.path).read_text(encoding="utf-8").splitlines()
    first = place.line - 1
    depth = len(lines[first]) - len(lines[first].lstrip())
    last = first + 1
    while last < len(lines) and (not lines[last].strip() or _is_inside(lines[last], depth)):
        last += 1
    body = [line[depth:] for line in lines[first:last]]
    while not body[-1].strip():
        body.pop()
    return list(enumerate(body, first + 1))


def _is_inside(line: str, depth: int) -> bool:
    indent = len(line) - len(line.lstrip())
    return indent > depth or (indent == depth and line.lstrip().startswith(")"))
