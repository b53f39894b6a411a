"""What-if: runs beside each other, and questions that a trace suggests.

A run is a recorded trace, a fork of it (`sim.fork`), or any other trace, such as one that `orrery simulate` wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import msgspec

from engine.errors import ConfigError, TraceError
from engine.metrics import IterationMetrics, MetricsSummary
from sim.diff import RunDiff, diff_runs, steps_that_differ
from sim.fork import Change
from sim.timeline import Timeline

#: So many runs stand beside each other.
MOST_RUNS = 4


class Run(NamedTuple):
    """One of several runs of the same requests."""

    name: str
    words: str
    """What is different in it."""
    timeline: Timeline
    clocked: Timeline
    """The same decisions at the times that it is compared by: those of a recorded run are modelled, as a fork's are."""

    @classmethod
    def of(cls, name: str, words: str, timeline: Timeline, clocked: Timeline | None = None) -> Run:
        """A run; compared by its own times unless others are given."""
        return cls(name, words, timeline, clocked or timeline)

    def step_at(self, nanoseconds: int) -> int | None:
        """The last step that had begun by then; None before the first."""
        begun = [facts.step for facts in self.clocked.series if facts.started_ns <= nanoseconds]
        return begun[-1] if begun else None

    def facts(self, step: int) -> IterationMetrics | None:
        """A step in numbers; None if the run has no such step."""
        try:
            return self.clocked.facts_of(step)
        except TraceError:
            return None

    def summary(self) -> MetricsSummary:
        """The whole run in numbers."""
        return _summary(self.clocked)


class Comparison(NamedTuple):
    """What a look at two whole runs found: made once, however many of their steps are shown."""

    diff: RunDiff
    differing: list[int]
    """Steps in which they are not the same."""


@lru_cache(maxsize=16)
def compared(first: Timeline, second: Timeline) -> Comparison:
    """Compare two runs; streams through both."""
    return Comparison(diff_runs(first, second), steps_that_differ(first, second))


@lru_cache(maxsize=16)
def _summary(timeline: Timeline) -> MetricsSummary:
    return timeline.summary().metrics.summarise()


class Suggestion(NamedTuple):
    """A question worth asking of a trace."""

    words: str
    change: Change


def suggestions(timeline: Timeline) -> list[Suggestion]:
    """Questions whose answer differs from what happened, as far as can be told without asking them."""
    if not timeline.steps:
        return []
    return list(_suggestions(timeline))


def _suggestions(timeline: Timeline) -> Iterator[Suggestion]:
    header, facts, first = timeline.header, timeline.summary(), timeline.steps[0]
    limits, pool = header.config.scheduler, header.kv_cache

    def turned(**knobs: int | bool) -> Change:
        return Change(step=first, knobs=dict(knobs))

    def fits(num_blocks: int) -> bool:
        try:
            msgspec.structs.replace(pool, num_gpu_blocks=num_blocks).require_room_for(
                header.model.max_model_len, header.config
            )
        except ConfigError:
            return False
        return True

    most_tokens = max((each.tokens for each in timeline.series), default=1)
    if most_tokens > 1:
        yield Suggestion("half the token budget", turned(max_num_batched_tokens=max(1, most_tokens // 2)))
    if most_tokens == limits.max_num_batched_tokens:
        yield Suggestion("twice the token budget", turned(max_num_batched_tokens=2 * most_tokens))
    if facts.num_preemptions:
        yield Suggestion("1.5 × the memory", turned(num_gpu_blocks=pool.num_gpu_blocks * 3 // 2))
    tight = max(2, 1 + facts.peak_blocks_in_use * 2 // 3)
    if tight < pool.num_gpu_blocks and fits(tight):
        yield Suggestion("two thirds of the memory it used", turned(num_gpu_blocks=tight))
    if facts.num_hit_tokens:
        yield Suggestion("without prefix caching", turned(enable_prefix_caching=False))
    if max((each.num_rows for each in timeline.series), default=0) > 1:
        yield Suggestion("one request at a time", turned(max_num_seqs=1))
    if header.config.speculative is not None:
        yield Suggestion("without speculation", turned(num_speculative_tokens=0))
    if facts.num_requests > 1:
        largest = max(timeline.life_lines.values(), key=lambda life: life.request.num_prompt_tokens).request.serial
        yield Suggestion(f"without r{largest}, the longest prompt", Change(step=first, without=(largest,)))
