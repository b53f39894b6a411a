"""What an invariant is: a name, a sentence, and methods that look at the events it is about.

::

    class HandedOutFromTheHead(Invariant):
        name = "handed out from the head"
        statement = "Blocks leave free_block_queue at its head."

        @before(ev.KVAllocated)
        def head(self, state: State, event: ev.KVAllocated) -> Sentences:
            if …:
                yield "…"
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from engine.trace import events as ev
from sim.state import State

#: What a look at an event finds wrong, each a clause without its full stop.
Sentences = Iterator[str]

Look = Callable[[State, Any], Iterable[str]]
_Method = TypeVar("_Method", bound=Callable[..., Sentences])
_Moment = Literal["before", "after"]


class Violation(NamedTuple):
    """A trace does not keep an invariant."""

    invariant: str
    seq: int
    """The event that shows it."""
    step: int
    sentence: str


class _Mark(NamedTuple):
    moment: _Moment
    types: tuple[type[ev.Event], ...]


def before(*types: type[ev.Event]) -> Callable[[_Method], _Method]:
    """Mark a method that looks at events of these types with the state they meet."""
    return _mark("before", types)


def after(*types: type[ev.Event]) -> Callable[[_Method], _Method]:
    """Mark a method that looks at events of these types with the state they leave."""
    return _mark("after", types)


def _mark(moment: _Moment, types: tuple[type[ev.Event], ...]) -> Callable[[_Method], _Method]:
    def mark(method: _Method) -> _Method:
        method.__dict__["looks_at"] = _Mark(moment, types)
        return method

    return mark


class Invariant:
    """Something every trace keeps. May remember what it has seen; one instance watches one trace."""

    name: ClassVar[str]
    statement: ClassVar[str]

    def __init__(self, header: ev.Header) -> None:
        self.header = header

    def looks(self) -> Iterator[tuple[_Moment, type[ev.Event], Look]]:
        """Which events it looks at, when, and how."""
        for method_name, method in vars(type(self)).items():
            mark = getattr(method, "looks_at", None)
            if isinstance(mark, _Mark):
                for event_type in mark.types:
                    yield mark.moment, event_type, getattr(self, method_name)

    def audit(self, state: State) -> Sentences:
        """Look at the whole state at once: O(its size), done at the end of a trace."""
        yield from ()
