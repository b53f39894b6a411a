"""Runs the invariants: over a whole trace, or event by event beside a live core."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.trace import events as ev
from sim.invariants.blocks import BLOCK_INVARIANTS
from sim.invariants.content import CONTENT_INVARIANTS
from sim.invariants.forward import FORWARD_INVARIANTS
from sim.invariants.invariant import Invariant, Look, Violation
from sim.invariants.lifecycle import LIFECYCLE_INVARIANTS
from sim.invariants.scheduling import SCHEDULING_INVARIANTS
from sim.invariants.speculation import SPECULATION_INVARIANTS
from sim.invariants.transfer import TRANSFER_INVARIANTS
from sim.state import State, StateError

if TYPE_CHECKING:
    from engine.trace.file import AnyTrace


class PossibleFacts(Invariant):
    """Broken when an event cannot be folded: nothing can be checked after it."""

    name = "possible facts"
    statement = "Every event can be true of the state that the events before it left."


INVARIANTS: tuple[type[Invariant], ...] = (
    PossibleFacts,
    *LIFECYCLE_INVARIANTS,
    *SCHEDULING_INVARIANTS,
    *BLOCK_INVARIANTS,
    *CONTENT_INVARIANTS,
    *TRANSFER_INVARIANTS,
    *FORWARD_INVARIANTS,
    *SPECULATION_INVARIANTS,
)


@dataclass(slots=True)
class CheckReport:
    """What a check found."""

    num_events: int
    num_looks: Counter[str]
    """By invariant: how many events it looked at. At 0 the trace says nothing about it."""
    violations: list[Violation]
    stopped_at: int | None
    """Seq of an event that cannot be; nothing behind it was checked."""


class InvariantChecker:
    """Checks events one by one as they come. After an impossible event it looks at no more."""

    def __init__(self, header: ev.Header) -> None:
        self.state = State.initial(header)
        self.num_events = 0
        self.num_looks: Counter[str] = Counter()
        self.stopped_at: int | None = None
        self._invariants = [invariant(header) for invariant in INVARIANTS]
        self._before: dict[type[ev.Event], list[tuple[str, Look]]] = {}
        self._after: dict[type[ev.Event], list[tuple[str, Look]]] = {}
        for invariant in self._invariants:
            for moment, event_type, look in invariant.looks():
                looks = self._before if moment == "before" else self._after
                looks.setdefault(event_type, []).append((invariant.name, look))

    def feed(self, event: ev.Event) -> list[Violation]:
        """Look at the next event; returns what it breaks."""
        if self.stopped_at is not None:
            return []
        self.num_events += 1
        self.num_looks[PossibleFacts.name] += 1
        found = self._look(self._before, event)
        try:
            self.state.apply(event)
        except StateError as error:
            self.stopped_at = event.seq
            return [*found, Violation(PossibleFacts.name, event.seq, event.step, error.why)]
        return found + self._look(self._after, event)

    def _look(self, looks: dict[type[ev.Event], list[tuple[str, Look]]], event: ev.Event) -> list[Violation]:
        found: list[Violation] = []
        for name, look in looks.get(type(event), ()):
            self.num_looks[name] += 1
            try:
                found += [Violation(name, event.seq, event.step, sentence) for sentence in look(self.state, event)]
            except (LookupError, ValueError) as error:
                # A trace may say anything: a request that never came, a list that is too short.
                sentence = f"it cannot be looked at: {type(error).__name__}, {error}"
                found.append(Violation(name, event.seq, event.step, sentence))
        return found

    def audit(self) -> list[Violation]:
        """Look at the whole state as it is now: O(blocks + requests)."""
        if self.stopped_at is not None:
            return []
        return [
            Violation(invariant.name, self.state.seq, self.state.step, sentence)
            for invariant in self._invariants
            for sentence in invariant.audit(self.state)
        ]


def check(trace: AnyTrace) -> CheckReport:
    """Check every invariant over a whole trace."""
    checker = InvariantChecker(trace.header)
    violations: list[Violation] = []
    for event in trace.events:
        violations += checker.feed(event)
    violations += checker.audit()
    return CheckReport(checker.num_events, checker.num_looks, violations, checker.stopped_at)


def check_trace(trace: AnyTrace) -> list[Violation]:
    """What a trace does not keep, in the order of its events; empty when all is well."""
    return check(trace).violations
