"""One wrong fact in a real trace, to see which invariant notices, and at which event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from engine.trace import events as ev
from engine.trace.file import Trace
from sim.invariants import check_trace
from sim.state import State

Edit = Callable[[Any], dict[str, Any]]
Where = Callable[[Any, State], bool]


class Wrong(NamedTuple):
    """The first event of a type, where a condition holds, gets other values or is left out."""

    invariant: str
    event_type: type[ev.Event]
    edit: Edit | None  # None: the event is left out
    where: Where = lambda event, state: True
    shows_at: type[ev.Event] | None = None  # the type of the event that shows it first; None: the edited one


def plus(field: str, amount: int = 1) -> Edit:
    return lambda event: {field: getattr(event, field) + amount}


def put(**values: Any) -> Edit:
    return lambda event: values


def turned(field: str) -> Edit:
    return lambda event: {field: getattr(event, field)[::-1]}


def first_one(field: str, amount: int = 1) -> Edit:
    return lambda event: {field: [getattr(event, field)[0] + amount, *getattr(event, field)[1:]]}


def several(field: str) -> Where:
    return lambda event, state: len(set(getattr(event, field))) > 1


def is_(field: str, value: Any) -> Where:
    return lambda event, state: getattr(event, field) == value


def has(field: str) -> Where:
    return lambda event, state: bool(getattr(event, field))


def edited(trace: Trace, wrong: Wrong) -> tuple[Trace, ev.Event]:
    """The trace with its one wrong fact, and the event that was edited."""
    state = State.initial(trace.header)
    for position, event in enumerate(trace.events):
        if isinstance(event, wrong.event_type) and wrong.where(event, state):
            replaced = [] if wrong.edit is None else [msgspec.structs.replace(event, **wrong.edit(event))]
            false = [*trace.events[:position], *replaced, *trace.events[position + 1 :]]
            return Trace(trace.header, false), replaced[0] if replaced else event
        state.apply(event)
    raise AssertionError("the trace holds no event that could be edited so")


def assert_noticed(trace: Trace, wrong: Wrong) -> None:
    """The invariant is broken, at the event where it should show."""
    false, event = edited(trace, wrong)
    broken = [violation for violation in check_trace(false) if violation.invariant == wrong.invariant]
    assert broken
    if wrong.shows_at is None:
        assert event.seq in [violation.seq for violation in broken]
    else:
        named = next(later for later in false.events if later.seq == broken[0].seq)
        assert isinstance(named, wrong.shows_at)
        assert named.seq > event.seq
