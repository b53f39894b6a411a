"""What a trace proves of itself: that it keeps every invariant, and that a replay decides the same.

Each is found out once for as long as a timeline is open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

from sim.invariants import CheckReport, check
from sim.replay import ReplayReport, replay
from sim.timeline import Timeline

_Report = TypeVar("_Report")

#: Proving goes over every event: of a larger trace only when it is asked for.
PROVED_AT_ONCE = 50_000

_checks: WeakKeyDictionary[Timeline, CheckReport] = WeakKeyDictionary()
_replays: WeakKeyDictionary[Timeline, ReplayReport] = WeakKeyDictionary()


def takes_long(timeline: Timeline) -> bool:
    """Whether nobody should have to wait for the proofs who has not asked for them."""
    return len(timeline.events) > PROVED_AT_ONCE


def checked(timeline: Timeline) -> CheckReport:
    """What a check of every invariant found."""
    return _once(_checks, timeline, lambda: check(timeline.trace))


def replayed(timeline: Timeline) -> ReplayReport:
    """What a replay found.

    Raises:
        TraceError: the trace cannot be replayed.
    """
    return _once(_replays, timeline, lambda: replay(timeline.trace))


def _once(
    reports: WeakKeyDictionary[Timeline, _Report], timeline: Timeline, find_out: Callable[[], _Report]
) -> _Report:
    if timeline not in reports:
        reports[timeline] = find_out()
    return reports[timeline]
