"""In which steps two runs are not the same, as far as the figures of a step tell."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter

from engine.metrics import IterationMetrics
from sim.timeline import Timeline

#: What a step is planned in, not what was planned: of another pool or budget they always differ.
_CIRCUMSTANCES = frozenset({"started_ns", "ended_ns", "token_budget", "usable_blocks", "free_blocks"})
_facts = attrgetter(*(field.name for field in fields(IterationMetrics) if field.name not in _CIRCUMSTANCES))


def steps_that_differ(first: Timeline, second: Timeline) -> list[int]:
    """Steps that only one of two runs has, and those with other tokens, queues, hits, preemptions, … in each."""
    here, there = ({facts.step: _facts(facts) for facts in timeline.series} for timeline in (first, second))
    return [step for step in sorted({*here, *there}) if here.get(step) != there.get(step)]
