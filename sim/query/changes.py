"""The past and the future of one block, or of one request: when did it last change, and when will it next?"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from typing import Any, Literal, NamedTuple

from engine.errors import QueryError, TraceError
from engine.trace import events as ev
from sim.timeline import Timeline

BLOCK_CHANGES = ("allocated", "evicted", "shared", "cached", "uncached", "freed")
REQUEST_CHANGES = ("added", "status", "scheduled", "skipped", "preempted", "updated", "blocks", "grammar", "ended")


class Change(NamedTuple):
    """One event that changed a block or a request."""

    position: int
    """Of the event in the trace."""
    event: ev.Event
    kind: str
    """One of `BLOCK_CHANGES` or `REQUEST_CHANGES`."""
    words: str
    """What happened, in plain words."""


def block_changes(
    timeline: Timeline, block_id: int, position: int, direction: Literal["before", "after"]
) -> Iterator[Change]:
    """What happened to a block, the nearest first.

    Args:
        timeline: of the trace.
        block_id: of the pool.
        position: of an event; what is before it, or from it on.
        direction: into the past or the future.

    Raises:
        QueryError: the pool has no such block.
    """
    num_blocks = timeline.header.kv_cache.num_gpu_blocks
    if not 0 <= block_id < num_blocks:
        raise QueryError(f"There is no block {block_id}: the pool has blocks 0 to {num_blocks - 1}.")
    touches = timeline.touches
    positions = list(merge(touches.blocks.get(block_id, ()), touches.resets))
    for place in _from(positions, position, direction):
        event = timeline.events[place]
        if isinstance(event, ev.CacheReset) and not _has_hash(timeline, positions, place):
            continue
        yield Change(place, event, *_block_words(event, block_id))


def request_changes(
    timeline: Timeline, serial: int, position: int, direction: Literal["before", "after"]
) -> Iterator[Change]:
    """What happened to a request, the nearest first; arguments as those of `block_changes`.

    Raises:
        QueryError: the trace has no such request.
    """
    positions = timeline.touches.requests.get(serial)
    if positions is None:
        raise QueryError(f"There is no request r{serial} in this trace.")
    for place in _from(positions, position, direction):
        event = timeline.events[place]
        yield Change(place, event, *_request_words(event, serial))


def serial_of(timeline: Timeline, word: str) -> int:
    """The request that a word means: `r3`, or the id that its client gave it, the newest of that id.

    Raises:
        QueryError: there is none.
    """
    lives = timeline.life_lines
    found = [serial for serial, life in lives.items() if word in (f"r{serial}", life.request.request_id)]
    if not found:
        last = max(lives, default=None)
        known = "no request at all" if last is None else f"r0 to r{last}"
        raise QueryError(f"There is no request {word!r} in this trace: it has {known}.")
    return found[-1]


def _from(positions: Sequence[int], position: int, direction: Literal["before", "after"]) -> Sequence[int]:
    middle = bisect_left(positions, position)
    return positions[middle:] if direction == "after" else positions[:middle][::-1]


def _has_hash(timeline: Timeline, positions: Sequence[int], place: int) -> bool:
    """Whether the block of these positions bears a hash when a reset comes: what changed it last says so."""
    for earlier in _from(positions, place, "before"):
        event = timeline.events[earlier]
        if isinstance(event, (ev.KVCached, ev.KVUncached, ev.KVAllocated, ev.CacheReset)):
            return isinstance(event, ev.KVCached)
    return False


def _block_words(event: Any, block_id: int) -> tuple[str, str]:
    """Kind and words of what an event did to a block."""
    if isinstance(event, ev.CacheReset):
        return "uncached", "lost its hash: the prefix cache was reset"
    place = event.block_ids.index(block_id)
    match event:
        case ev.KVAllocated() if block_id in event.evicted_block_ids:
            lost = event.evicted_hashes[event.evicted_block_ids.index(block_id)]
            return "evicted", f"handed out to r{event.request}; the cached prefix {lost[:8]}… is lost"
        case ev.KVAllocated():
            return "allocated", f"handed out to r{event.request}"
        case ev.KVTouched():
            revived = " and is free no more" if event.ref_counts[place] == 1 else ""
            return (
                "shared",
                f"r{event.request} found it in the prefix cache{revived}; {event.ref_counts[place]} hold it",
            )
        case ev.KVCached():
            whose = f"block {event.first_block + place} of r{event.request}"
            return "cached", f"full: {whose} can be found as {event.hashes[place][:8]}…"
        case ev.KVUncached():
            return "uncached", f"lost its hash {event.hashes[place][:8]}…: {event.why}"
        case ev.KVFreed():
            left = event.ref_counts[place]
            return "freed", f"r{event.request} gave it up ({event.why}); {f'{left} hold it' if left else 'it is free'}"
    raise TraceError(f"event {event.seq} changes no block.")


def _request_words(event: Any, serial: int) -> tuple[str, str]:
    """Kind and words of what an event did to a request."""
    return _REQUEST_WORDS[type(event)](event, serial)


def _preempted(event: ev.SchedulePreempted, serial: int) -> tuple[str, str]:
    short = f"{event.needed} needed, {event.available} free"
    if event.victim == serial:
        whom = "nobody else was left" if event.for_request == serial else f"for r{event.for_request}"
        return "preempted", f"lost its blocks, {whom} ({short}); {event.num_computed_tokens} tokens of KV are lost"
    return "preempted", f"took the blocks of r{event.victim} ({short})"


def _scheduled(event: ev.ScheduleRequest, serial: int) -> tuple[str, str]:
    cut = f", cut by {event.truncated_by}" if event.truncated_by else ""
    how = "" if event.admission == "running" else f", {event.admission}"
    return (
        "scheduled",
        f"{event.num_scheduled_tokens} tokens, {event.phase}{how}, {event.num_computed_tokens} before{cut}",
    )


def _updated(event: ev.UpdateRequest, serial: int) -> tuple[str, str]:
    if event.dropped is not None:
        return "updated", f"its output was dropped: it was {event.dropped} meanwhile"
    return "updated", f"got tokens {event.appended}; {event.num_computed_tokens} have KV now"


def _blocks(words: str) -> Callable[[Any, int], tuple[str, str]]:
    return lambda event, serial: ("blocks", f"{words} {_few(event.block_ids)}")


def _few(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:6]))
    return shown if len(numbers) <= 6 else f"{shown} and {len(numbers) - 6} more"


_REQUEST_WORDS: dict[type[ev.Event], Callable[[Any, int], tuple[str, str]]] = {
    ev.RequestAdded: lambda event, serial: ("added", f"{len(event.prompt_token_ids)} tokens of prompt"),
    ev.RequestAborted: lambda event, serial: ("ended", f"aborted: {event.cause}"),
    ev.RequestStatusChanged: lambda event, serial: (
        "status",
        f"{event.old} → {event.new}: {event.why}" if event.old else f"{event.new}: {event.why}",
    ),
    ev.RequestFinished: lambda event, serial: (
        "ended",
        f"{event.finish_reason} after {event.num_output_tokens} tokens, {event.num_preemptions} preemptions",
    ),
    ev.GrammarRequested: lambda event, serial: ("grammar", "is to be compiled"),
    ev.GrammarReady: lambda event, serial: ("grammar", "is compiled"),
    ev.GrammarFailed: lambda event, serial: ("grammar", f"cannot be compiled: {event.why}"),
    ev.ScheduleRequest: _scheduled,
    ev.ScheduleSkipped: lambda event, serial: ("skipped", f"got no tokens: {event.reason}"),
    ev.SchedulePreempted: _preempted,
    ev.UpdateRequest: _updated,
    ev.SpecVerdict: lambda event, serial: (
        "updated",
        f"{event.num_accepted} of {len(event.draft_token_ids)} drafts accepted",
    ),
    ev.KVLookup: lambda event, serial: (
        "blocks",
        f"the prefix cache has {event.num_hit_tokens} of its {event.num_queried_tokens} tokens",
    ),
    ev.KVAllocated: _blocks("gets blocks"),
    ev.KVTouched: _blocks("shares blocks"),
    ev.KVCached: _blocks("has full blocks"),
    ev.KVFreed: _blocks("gives up blocks"),
    ev.KVHeld: lambda event, serial: ("blocks", "stay out of the pool: a connector works on them"),
}
