"""The smallest episode that still breaks the same invariant: what is left is what matters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from sim.fuzz.episode import Arrival, Episode, Setting

_Struct = TypeVar("_Struct", bound=msgspec.Struct)

#: Plays an episode; the name of the invariant it breaks, or None.
Verdict = Callable[[Episode], str | None]

#: Episodes tried before the smallest so far has to do.
_PATIENCE = 2_000

#: By field, values from the simplest on. (Those of pool and budget are not here: a small one is what breaks things.)
_SETTINGS: dict[str, tuple[Any, ...]] = {
    "drafter": (None, "ngram"),
    "num_speculative_tokens": (1, 2, 3),
    "draft_luck": (100, 0),
    "steps_in_flight": (1, 2, 3, 4),
    "long_prefill_token_threshold": (0,),
    "max_num_batched_tokens": (Setting().max_num_batched_tokens,),
    "max_num_seqs": (Setting().max_num_seqs,),
    "policy": ("fcfs",),
    "hash_algo": ("builtin",),
    "enable_prefix_caching": (False,),
    "windows": ((None,),),
    "kv_connector": (False,),
}
_ARRIVALS: dict[str, tuple[Any, ...]] = {
    "grammar_after": (None, 0),
    "grammar_fails": (False,),
    "num_remote_tokens": (0, 1),
    "remote_after": (None, 0),
    "sent_after": (None, 0),
    "aborted_after": (None, 0),
    "takes_over": (False,),
    "moment": ("before",),
    "aborted_at": ("before",),
    "cache_salt": (None,),
    "asks_prompt_logprobs": (False,),
    "has_prompt_embeds": (False,),
    "priority": (0,),
    "min_tokens": (0,),
    "stop_token_ids": ((),),
    "ignore_eos": (False,),
}


def shrink(episode: Episode, verdict: Verdict) -> Episode:
    """Leave out and simplify for as long as the same invariant breaks."""
    broken = verdict(episode)
    patience = _PATIENCE
    smallest: Episode | None = None
    while episode != smallest:
        smallest = episode
        for simpler in (_earlier, _without_arrivals, _without_trouble, _in_a_simpler_setting, _of_simpler_arrivals):
            candidates = simpler(episode)
            while (candidate := next(candidates, None)) is not None and patience > 0:
                patience -= 1
                if verdict(candidate) == broken:
                    episode = candidate
                    candidates = simpler(episode)
    return episode


def _earlier(episode: Episode) -> Iterator[Episode]:
    idle = min((arrival.tick for arrival in episode.arrivals), default=0)
    for ticks in (idle, 1):
        if 0 < ticks <= idle:
            yield replace(
                episode,
                arrivals=tuple(replace(arrival, tick=arrival.tick - ticks) for arrival in episode.arrivals),
                resets=tuple((tick - ticks, moment) for tick, moment in episode.resets if tick >= ticks),
                failures=tuple(step - ticks for step in episode.failures if step > ticks),
            )


def _without_arrivals(episode: Episode) -> Iterator[Episode]:
    for arrivals in _shorter(episode.arrivals):
        yield replace(episode, arrivals=arrivals)


def _without_trouble(episode: Episode) -> Iterator[Episode]:
    for failures in _shorter(episode.failures):
        yield replace(episode, failures=failures)
    for resets in _shorter(episode.resets):
        yield replace(episode, resets=resets)


def _in_a_simpler_setting(episode: Episode) -> Iterator[Episode]:
    for setting in _lower(episode.setting, _SETTINGS):
        yield replace(episode, setting=setting)


def _of_simpler_arrivals(episode: Episode) -> Iterator[Episode]:
    for index, arrival in enumerate(episode.arrivals):
        for simpler in _simpler_arrivals(arrival):
            yield replace(episode, arrivals=(*episode.arrivals[:index], simpler, *episode.arrivals[index + 1 :]))


def _shorter(items: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The items without a half, a quarter, …, a single one of them; from the end, which is most often idle."""
    length = len(items)
    while length:
        for end in range(len(items), 0, -length):
            yield items[: max(0, end - length)] + items[end:]
        length //= 2


def _simpler_arrivals(arrival: Arrival) -> Iterator[Arrival]:
    yield from _lower(arrival, _ARRIVALS)
    if arrival.tick:
        yield replace(arrival, tick=0)
        yield replace(arrival, tick=arrival.tick // 2)
        yield replace(arrival, tick=arrival.tick - 1)
    if arrival.max_tokens > max(1, arrival.min_tokens):
        yield replace(arrival, max_tokens=max(1, arrival.min_tokens))
        yield replace(arrival, max_tokens=arrival.max_tokens - 1)
    for length in (len(arrival.prompt) // 2, len(arrival.prompt) - 1):
        if length:
            yield replace(arrival, prompt=arrival.prompt[:length])


def _lower(struct: _Struct, values: dict[str, tuple[Any, ...]]) -> Iterator[_Struct]:
    """The struct with one field a simpler value."""
    for field, simplest_first in values.items():
        value = getattr(struct, field)
        simpler = simplest_first[: simplest_first.index(value)] if value in simplest_first else simplest_first
        for other in simpler:
            yield replace(struct, **{field: other})
