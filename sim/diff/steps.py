"""In which steps two runs are not the same, as far as the figures of a step tell."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter

from engine.metrics import IterationMetrics
from sim.timeline import Timeline

_facts = attrgetter(*(field.name for field in fields(IterationMetrics) if not field.name.endswith("_ns")))


def steps_that_differ(first: Timeline, second: Timeline) -> list[int]:
    """Steps that only one of two runs has, and those with other tokens, queues, free blocks, hits, … in each."""
    here, there = ({facts.step: _facts(facts) for facts in timeline.series} for timeline in (first, second))
    return [step for step in sorted({*here, *there}) if here.get(step) != there.get(step)]
