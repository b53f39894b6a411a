"""Two runs: where they part, and what became of each request."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import msgspec

from engine.trace import events as ev
from sim.field_differences import FieldDifference, differing_fields, say_the_same
from sim.summary import LifeLine
from sim.timeline import Timeline

#: In what circumstances something was decided, not what: with another pool or budget they always differ.
_CIRCUMSTANCES = frozenset({"free_blocks", "available", "budget_left", "token_budget"})


class FirstDifference(NamedTuple):
    """The first events of a kind that are not the same in both runs."""

    num_equal: int
    """Events of the kind before them."""
    first: ev.Event | None
    """None: the first run has no more."""
    second: ev.Event | None
    fields: list[FieldDifference]
    """In which they differ, if they are of one type."""

    @property
    def step(self) -> int:
        """Of the earlier one."""
        return min(event.step for event in (self.first, self.second) if event is not None)

    def comes_before(self, other: FirstDifference) -> bool:
        """Whether it comes before another in a run that has both."""
        for one, two in ((self.first, other.first), (self.second, other.second)):
            if one is not None and two is not None:
                return one.seq < two.seq
        return self.step <= other.step

    @property
    def why(self) -> str:
        """What is different, in a few words."""
        if self.first is None or self.second is None:
            return f"only the {'second' if self.first is None else 'first'} run goes on"
        if not self.fields:
            return f"{ev.tag_of(self.first)} here, {ev.tag_of(self.second)} there"
        return f"{', '.join(each.field for each in self.fields)} of {ev.tag_of(self.first)}"


class RequestChange(NamedTuple):
    """A request that fared otherwise."""

    serial: int
    """In the first run."""
    request_id: str
    fields: list[FieldDifference]


class RunDiff(NamedTuple):
    """How two runs differ."""

    config: list[FieldDifference]
    """What differs in the headers: the engine's settings, model, pool."""
    input: FirstDifference | None
    """None also if it comes after the decision: then it follows from that."""
    decision: FirstDifference | None
    requests: list[RequestChange]
    only_first: list[str]
    """Names of requests that the other run does not have."""
    only_second: list[str]

    @property
    def is_same(self) -> bool:
        """Whether the same inputs led to the same decisions, in whatever circumstances."""
        return self.input is None and self.decision is None


def diff_runs(first: Timeline, second: Timeline) -> RunDiff:
    """Compare two runs. Streams through both.

    What was decided is compared, not how many blocks were free or how much of the budget was left at the time.
    """
    pairs = _pairs(first, second)
    matched = set(pairs.values())
    other_input = _first_difference(first, second, ev.EventClass.INPUT)
    decision = _first_difference(first, second, ev.EventClass.DECISION)
    return RunDiff(
        config=_config(first.header, second.header),
        input=None if other_input and decision and decision.comes_before(other_input) else other_input,
        decision=decision,
        requests=[
            RequestChange(serial, first.life_lines[serial].request.request_id, fields)
            for serial, other in pairs.items()
            if (fields := _fared(first.life_lines[serial], second.life_lines[other]))
        ],
        only_first=[f"r{serial}" for serial in first.life_lines if serial not in pairs],
        only_second=[f"r{serial}" for serial in second.life_lines if serial not in matched],
    )


def _first_difference(first: Timeline, second: Timeline, kind: ev.EventClass) -> FirstDifference | None:
    for index, (a, b) in enumerate(zip_longest(_of(first, kind), _of(second, kind))):
        if a is None or b is None:
            return FirstDifference(index, a, b, [])
        if not say_the_same(a, b, _CIRCUMSTANCES):
            return FirstDifference(index, a, b, differing_fields(a, b, _CIRCUMSTANCES))
    return None


def _of(timeline: Timeline, kind: ev.EventClass) -> Iterator[ev.Event]:
    """Events of a kind, without those that only tell the situation in which a step is planned."""
    return (event for event in timeline.events if event.kind is kind and not isinstance(event, ev.StepStarted))


def _pairs(first: Timeline, second: Timeline) -> dict[int, int]:
    """Requests that are in both runs: by their place in the order of arrival if that fits, else by their client's
    name."""
    names = {serial: life.request.request_id for serial, life in second.life_lines.items()}
    by_name: dict[str, int] = {}
    for serial, name in names.items():
        by_name.setdefault(name, serial)
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for serial, life in first.life_lines.items():
        name = life.request.request_id
        other = serial if names.get(serial) == name else by_name.get(name)
        if other is not None and other not in taken:
            pairs[serial] = other
            taken.add(other)
    return pairs


def _fared(first: LifeLine, second: LifeLine) -> list[FieldDifference]:
    """In which a request fared otherwise, as far as steps and tokens tell."""
    here, there = _fate(first), _fate(second)
    return [FieldDifference(name, here[name], there[name]) for name in here if here[name] != there[name]]


def _fate(life: LifeLine) -> dict[str, Any]:
    return {
        "added": life.added,
        "first_scheduled": life.first_scheduled,
        "first_token": life.first_token,
        "finished": life.finished,
        "finish_reason": life.request.finish_reason,
        "output_tokens": life.request.num_output_tokens,
        "preemptions": len(life.preempted),
        "steps": len(life.scheduled),
    }


def _config(first: ev.Header, second: ev.Header) -> list[FieldDifference]:
    parts = [
        {
            **_flat("", msgspec.to_builtins(header.config)),
            **_flat("kv_cache.", {"num_gpu_blocks": header.kv_cache.num_gpu_blocks}),
            "model": header.model.name,
            "device": header.device,
        }
        for header in (first, second)
    ]
    names = [name for name in dict.fromkeys([*parts[0], *parts[1]]) if not name.startswith("trace.")]
    return [
        FieldDifference(name, parts[0].get(name), parts[1].get(name))
        for name in names
        if parts[0].get(name) != parts[1].get(name)
    ]


def _flat(prefix: str, value: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, part in value.items():
        flat.update(_flat(f"{prefix}{name}.", part) if isinstance(part, dict) else {f"{prefix}{name}": part})
    return flat
