"""Preemptions: for whom a request lost its blocks, what could still be found of them, and what it cost to come back.

::

    step     20        21                       47              48
    victim   decode    preempted ··· waits ···· computes again  decode
                       ^ position               ^ back          the token of step 47 is its next one: `caught_up`
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from engine.errors import TraceError
from engine.trace import events as ev
from sim.summary import LifeLine
from sim.timeline import Timeline


@dataclass(frozen=True)
class Preemption:
    """One of them, told to its end."""

    step: int
    victim: int
    position: int
    """Of `schedule.preempted` in the events: the state there is the one in which blocks were missing."""
    settled: int
    """Behind the last event of it: the state there is the one in which the victim has given its blocks back."""
    event: ev.SchedulePreempted
    freed_block_ids: list[int]
    """Blocks that it gave back, in that order; those that others share are still in use."""
    back: ev.ScheduleRequest | None
    """The first row that it got again."""
    pieces: list[int]
    """Tokens of the prefills that brought it back to where it was, one entry per step."""
    caught_up: int | None
    """The step that brought its next token; None if there is none before it is preempted once more, ends, or the trace
    does."""

    @property
    def num_missing(self) -> int:
        """Blocks that `event.for_request` needed beyond the free ones."""
        return self.event.needed - self.event.available

    @property
    def num_found_tokens(self) -> int:
        """Tokens whose KV was found as it came back, in the prefix cache or through a KV connector."""
        return 0 if self.back is None else self.back.num_cached_tokens + self.back.num_remote_tokens

    @property
    def num_lost_tokens(self) -> int:
        """Tokens that had KV and had to be computed once more."""
        return max(0, self.event.num_computed_tokens - self.num_found_tokens)


def victims(timeline: Timeline) -> list[tuple[int, int]]:
    """Every preemption of a run as its step and the serial of its victim, in the order of the steps."""
    lives = timeline.life_lines.items()
    return sorted((step, serial) for serial, life in lives for step in life.preempted)


def preemption(timeline: Timeline, step: int, victim: int) -> Preemption:
    """Tell a preemption.

    Raises:
        TraceError: the victim was not preempted in that step.
    """
    life, position = timeline.life_lines.get(victim), _position(timeline, step, victim)
    if life is None or position is None:
        raise TraceError(f"r{victim} was not preempted in step {step}.")
    events = _events(timeline, step, position)
    event = events[0]
    assert isinstance(event, ev.SchedulePreempted)
    next_one = next(iter(_from(life.preempted, step + 1)), timeline.steps[-1] + 1)
    came_back = [number for number in _from(life.scheduled, step + 1) if number < next_one]
    tokens = [number for number in _from(life.tokens, came_back[0]) if number < next_one] if came_back else []
    caught_up = next(iter(tokens), None)
    return Preemption(
        step=step,
        victim=victim,
        position=position,
        settled=position + len(events),
        event=event,
        freed_block_ids=[block_id for each in events if isinstance(each, ev.KVFreed) for block_id in each.block_ids],
        back=_row(timeline, came_back[0], victim) if came_back else None,
        pieces=_pieces(life, came_back, caught_up),
        caught_up=caught_up,
    )


def _from(steps: list[int], first: int) -> list[int]:
    return steps[bisect_left(steps, first) :]


def _pieces(life: LifeLine, came_back: list[int], caught_up: int | None) -> list[int]:
    if not came_back:
        return []
    last = came_back[-1] if caught_up is None else caught_up
    return [num_tokens for step, num_tokens in life.prefills if came_back[0] <= step <= last]


def _position(timeline: Timeline, step: int, victim: int) -> int | None:
    for position in _positions(timeline, step, victim):
        event = timeline.events[position]
        if isinstance(event, ev.SchedulePreempted) and event.victim == victim:
            return position
    return None


def _events(timeline: Timeline, step: int, position: int) -> list[ev.Event]:
    """From `schedule.preempted` to the new status of the victim."""
    events: list[ev.Event] = []
    for event in timeline.events[position : timeline.span(step).end]:
        events.append(event)
        if isinstance(event, ev.RequestStatusChanged):
            break
    return events


def _row(timeline: Timeline, step: int, serial: int) -> ev.ScheduleRequest | None:
    events = (timeline.events[position] for position in _positions(timeline, step, serial))
    return next((event for event in events if isinstance(event, ev.ScheduleRequest)), None)


def _positions(timeline: Timeline, step: int, serial: int) -> list[int]:
    """Where a request is named while a step is planned."""
    positions, span = timeline.touches.requests.get(serial, ()), timeline.span(step)
    return list(positions[bisect_left(positions, span.start) : bisect_left(positions, span.planned)])
