"""Which fields of two events differ."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from engine.trace.events import Event

#: They count and time the events of a file, and say nothing of what happened.
_NOT_COMPARED = frozenset({"seq", "ts"})


class FieldDifference(NamedTuple):
    """One field that has two values."""

    field: str
    first: Any
    second: Any


def say_the_same(first: Event, second: Event, ignored: frozenset[str] = frozenset()) -> bool:
    """Whether two events differ in nothing but their number and time, and fields that are to be ignored."""
    if type(first) is not type(second):
        return False
    facts = _facts(type(first), ignored)
    return bool(facts(first) == facts(second))


def differing_fields(first: Event, second: Event, ignored: frozenset[str] = frozenset()) -> list[FieldDifference]:
    """The fields in which two events of one type differ; none if they are of two types."""
    if type(first) is not type(second):
        return []
    pairs = msgspec.structs.asdict(first), msgspec.structs.asdict(second)
    return [
        FieldDifference(name, pairs[0][name], pairs[1][name])
        for name in pairs[0]
        if name not in _NOT_COMPARED | ignored and pairs[0][name] != pairs[1][name]
    ]


@cache
def _facts(kind: type[Event], ignored: frozenset[str]) -> Callable[[Event], Any]:
    return attrgetter(*(name for name in kind.__struct_fields__ if name not in _NOT_COMPARED | ignored))
