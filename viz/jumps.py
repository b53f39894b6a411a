"""Where a jump leads: to the next or the previous match, preemption, step of a request, change of a block."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

from sim.query.changes import Change, block_changes, request_changes
from sim.timeline import Timeline
from viz.figures.parts import Selection
from viz.search import Found, Search, nearest_changes, step_of

Goal = Literal["match", "preemption", "scheduled", "change"]
#: Changes of one step that are told.
_TOLD = 4
_GOALS: tuple[Goal, ...] = get_args(Goal)


class Jump(NamedTuple):
    """What to go to, and in which direction."""

    goal: Goal
    forward: bool

    @classmethod
    def read(cls, written: str) -> Jump | None:
        """`next preemption`, `previous match` …; None if it is no jump."""
        direction, _, goal = written.partition(" ")
        known = next((each for each in _GOALS if each == goal), None)
        return None if known is None or direction not in ("next", "previous") else cls(known, direction == "next")


class Landing(NamedTuple):
    """Where a jump ends."""

    step: int
    words: str = ""
    """What happened there, or why it goes no further; empty where the figures say it."""


def land(jump: Jump, timeline: Timeline, step: int, selection: Selection, search: Search | None) -> Landing:
    """Where a jump from a step leads; back to the step itself, with the reason, if there is nothing to go to.

    Args:
        jump: what to go to.
        timeline: of the trace.
        step: where it starts.
        selection: request and block that it may be about.
        search: what is looked for.
    """
    match jump.goal:
        case "preemption":
            return _preemption(timeline, step, jump.forward)
        case "match":
            return _match(search, step, jump.forward)
        case "scheduled":
            return _scheduled(timeline, step, selection.request, jump.forward)
        case "change":
            return _change(timeline, step, selection, jump.forward)


def _preemption(timeline: Timeline, step: int, forward: bool) -> Landing:
    series = timeline.series
    here = bisect_right(series, step, key=lambda facts: facts.step)
    rest = series[here:] if forward else reversed(series[: bisect_left(series, step, key=lambda facts: facts.step)])
    found = next((facts.step for facts in rest if facts.preemptions), None)
    return Landing(step, f"Nobody is preempted {_where(step, forward)}.") if found is None else Landing(found)


def _match(search: Search | None, step: int, forward: bool) -> Landing:
    if search is None:
        return Landing(step, "Nothing is looked for yet: press / and say what.")
    found: Found = search.nearest(step, forward=forward)
    if found.step is not None:
        return Landing(found.step)
    if found.given_up_at is not None:
        first, last = sorted((step, found.given_up_at))
        key = "n" if forward else "N"
        return Landing(found.given_up_at, f"Not found in steps {first:,} to {last:,}; {key} looks on from here.")
    return Landing(step, f"Not found in any step {_where(step, forward)}.")


def _scheduled(timeline: Timeline, step: int, serial: int | None, forward: bool) -> Landing:
    life = None if serial is None else timeline.life_lines.get(serial)
    if life is None:
        return Landing(step, "No request is selected: click one.")
    steps = life.scheduled
    place = bisect_right(steps, step) if forward else bisect_left(steps, step) - 1
    if 0 <= place < len(steps):
        return Landing(steps[place])
    return Landing(step, f"r{serial} gets no tokens {_where(step, forward)}.")


def _change(timeline: Timeline, step: int, selection: Selection, forward: bool) -> Landing:
    block, serial = selection.block, selection.request
    if block is not None and block < timeline.header.kv_cache.num_gpu_blocks:
        name = f"block {block}"
    elif serial in timeline.life_lines:
        block, name = None, f"r{serial}"
    else:
        return Landing(step, "No block and no request is selected: click one.")

    def changes(position: int, *, forward: bool) -> Iterator[Change]:
        direction: Literal["before", "after"] = "after" if forward else "before"
        if block is not None:
            return block_changes(timeline, block, position, direction)
        assert serial is not None
        return request_changes(timeline, serial, position, direction)

    nearest = nearest_changes(timeline, step, changes, forward=forward)
    if not nearest:
        return Landing(step, f"Nothing happens to {name} {_where(step, forward)}.")
    told = [f"{change.kind}: {change.words}" for change in nearest[:_TOLD]]
    told += [f"{len(nearest) - _TOLD} more"] if len(nearest) > _TOLD else []
    return Landing(step_of(timeline, nearest[0]), f"{name} {' · '.join(told)}")


def _where(step: int, forward: bool) -> str:
    return f"{'after' if forward else 'before'} step {step:,}"
