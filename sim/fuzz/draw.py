"""Draws an episode from its seed. The dice are loaded: towards tiny pools, common beginnings, trouble."""

from __future__ import annotations

from random import Random
from typing import Literal

from sim.fuzz.episode import EOS, Arrival, Episode, Moment, Setting
from sim.fuzz.toy_model import VOCABULARY

#: Ticks during which requests arrive.
_BUSY_TICKS = 120


def draw_episode(seed: int) -> Episode:
    """The episode of a seed."""
    rng = Random(seed)
    setting = _setting(rng)
    crowd = _Crowd(rng, setting)
    rate = rng.choice((0.1, 0.25, 0.5))
    arrivals = tuple(
        crowd.arrival(tick) for tick in range(_BUSY_TICKS) if rng.random() < rate for _ in range(rng.choice((1, 1, 4)))
    )
    trouble = rng.random() < 0.5
    return Episode(
        seed=seed,
        setting=setting,
        arrivals=arrivals,
        resets=tuple((tick, _moment(rng)) for tick in range(_BUSY_TICKS) if rng.random() < 0.02),
        failures=tuple(step for step in range(1, _BUSY_TICKS * 4) if trouble and rng.random() < 0.02),
    )


def _setting(rng: Random) -> Setting:
    block_size = rng.choice((1, 1, 2, 2, 3, 4, 4, 8, 16))
    max_model_len = rng.randrange(8, 48)
    num_blocks = -(-max_model_len // block_size)
    # Drafts of a step must be verified before the next one is planned.
    drafter: Literal["ngram", "eagle"] | None = rng.choice((None, None, None, "ngram", "eagle"))
    window = rng.randrange(2, max_model_len)
    windows: tuple[int | None, ...] = rng.choice(((None,), (None,), (None,), (window,), (None, window)))
    return Setting(
        policy=rng.choice(("fcfs", "priority")),
        block_size=block_size,
        max_model_len=max_model_len,
        num_spare_blocks=rng.choice((0, 0, 1, num_blocks // 2, num_blocks, 3 * num_blocks)),
        max_num_batched_tokens=rng.choice((1, 3, 8, 16, 32, 64)),
        max_num_seqs=rng.randrange(1, 9),
        long_prefill_token_threshold=rng.choice((0, 0, rng.randrange(1, 12))),
        enable_prefix_caching=rng.random() < 0.85,
        hash_algo=rng.choice(("sha256", "builtin", "builtin")),
        drafter=drafter,
        num_speculative_tokens=rng.randrange(1, 6),
        draft_luck=rng.choice((0, 50, 80, 100)),
        steps_in_flight=1 if drafter else rng.choice((1, 2, 2, 3, 3, 4, 5)),
        windows=windows,
        kv_connector=windows == (None,) and rng.random() < 0.35,  # a connector cannot move the KV of a window
    )


def _moment(rng: Random) -> Moment:
    return "before" if rng.random() < 0.5 else "in flight"


class _Crowd:
    """The requests of one episode: they share beginnings, names and bad habits."""

    def __init__(self, rng: Random, setting: Setting) -> None:
        self._rng = rng
        self._setting = setting
        self._beginnings = [self._tokens(setting.max_model_len) for _ in range(rng.randrange(1, 4))]
        self._num_names = rng.choice((4, 1000))
        self._salts = rng.choice(((None,), (None, "a", "b")))
        self._impatience = rng.choice((0.0, 0.1, 0.3))
        self._guided = rng.choice((0.0, 0.0, 0.3))
        self._far = rng.choice((0.2, 0.5)) if setting.kv_connector else 0.0
        self._longest_output = rng.choice((3, 8, setting.max_model_len))

    def arrival(self, tick: int) -> Arrival:
        """One request."""
        rng = self._rng
        max_tokens = rng.randint(1, self._longest_output)
        return Arrival(
            tick=tick,
            request_id=f"q{rng.randrange(self._num_names)}",
            prompt=self._prompt(),
            max_tokens=max_tokens,
            min_tokens=rng.choice((0, 0, rng.randint(0, max_tokens))),
            stop_token_ids=rng.choice(((), (EOS + 1, EOS + 2))),
            ignore_eos=rng.random() < 0.3,
            priority=rng.randrange(5),
            cache_salt=rng.choice(self._salts),
            asks_prompt_logprobs=rng.random() < 0.08,
            has_prompt_embeds=rng.random() < 0.05,
            moment=_moment(rng),
            takes_over=rng.random() < self._impatience,
            grammar_after=rng.randrange(12) if rng.random() < self._guided else None,
            grammar_fails=rng.random() < 0.2,
            num_remote_tokens=rng.randrange(self._setting.max_model_len) if rng.random() < self._far else 0,
            remote_after=rng.choice((None, 0, rng.randrange(12))),
            sent_after=rng.randrange(20) if rng.random() < self._far else None,
            aborted_after=rng.randrange(rng.choice((4, 30))) if rng.random() < self._impatience else None,
            aborted_at=_moment(rng),
        )

    def _prompt(self) -> tuple[int, ...]:
        rng, size, longest = self._rng, self._setting.block_size, self._setting.max_model_len - 1
        beginning = rng.choice(self._beginnings)
        common = rng.randint(0, longest)
        if rng.random() < 0.4:  # whole blocks, and nothing after them
            return beginning[: max(1, min(longest, max(1, common // size) * size))]
        return (beginning[:common] + self._tokens(rng.randint(1, 8)))[:longest]

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(EOS + 3 + self._rng.randrange(VOCABULARY) for _ in range(count))
