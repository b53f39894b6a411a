"""A campaign: episode after episode, until so many steps are done or something breaks."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from sim.fuzz.draw import draw_episode
from sim.fuzz.episode import Episode
from sim.fuzz.shrink import shrink
from sim.fuzz.situations import Situations
from sim.fuzz.stage import play
from sim.invariants import Violation

#: One episode in so many is recorded and replayed.
_REPLAY_EVERY = 16
#: Events shown before a failure.
_NUM_LAST_EVENTS = 24


class Failure(NamedTuple):
    """An episode that breaks something."""

    seed: int
    violation: Violation
    smallest: Episode
    """What is left of it when everything that does not matter is left out."""
    last_events: list[str]
    """Of the smallest episode, up to the violation."""


class Campaign(NamedTuple):
    """What a campaign found."""

    num_steps: int
    num_episodes: int
    num_replayed: int
    situations: Situations
    failure: Failure | None

    @property
    def missing(self) -> list[str]:
        """Situations that it should have reached more often."""
        return self.situations.missing(self.num_steps)


def run_campaign(num_steps: int, seed: int, progress: Callable[[int], None] = lambda steps: None) -> Campaign:
    """Play episodes for at least so many steps, or until one breaks something.

    Args:
        num_steps: calls of `schedule()`.
        seed: of the generator from which the seeds of the episodes are drawn.
        progress: told the steps of every episode.
    """
    rng = Random(seed)
    situations = Situations()
    steps = episodes = replayed = 0
    failure: Failure | None = None
    while steps < num_steps and failure is None:
        episode_seed = rng.getrandbits(32)
        record = episodes % _REPLAY_EVERY == 0
        outcome = play(draw_episode(episode_seed), situations, record=record)
        episodes, replayed, steps = episodes + 1, replayed + record, steps + outcome.num_steps
        progress(outcome.num_steps)
        if outcome.violation is not None:
            failure = examine(draw_episode(episode_seed))
    return Campaign(steps, episodes, replayed, situations, failure)


def examine(episode: Episode) -> Failure | None:
    """Play an episode, and replay it; what it breaks, shrunk. None if all is well."""
    record = _broken(episode, record=False) is None  # a replay is needed only for what nothing else shows
    if _broken(episode, record=record) is None:
        return None
    smallest = shrink(episode, lambda candidate: _broken(candidate, record=record))
    outcome = play(smallest, Situations(), record=True)
    assert outcome.violation is not None and outcome.trace is not None
    last_events = [repr(event) for event in outcome.trace.events[-_NUM_LAST_EVENTS:]]
    return Failure(episode.seed, outcome.violation, smallest, last_events)


def _broken(episode: Episode, *, record: bool) -> str | None:
    violation = play(episode, Situations(), record=record).violation
    return violation and violation.invariant
