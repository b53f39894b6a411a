"""What a fork changes: the step from which on, knobs, and requests that are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from engine.config import EngineConfig, KVCacheConfig, Policy, SchedulerConfig
from engine.errors import ConfigError
from engine.trace.events import Header

KnobValue = int | bool | str

#: Of a number: readers of traces, such as Parquet's, hold them in so many bits.
MOST = (1 << 31) - 1

#: Of a pool, unless the recorded one was larger: with more, a core takes minutes and gigabytes to be made.
_MOST_BLOCKS = 1 << 20


class Knob(NamedTuple):
    """One thing that can be turned."""

    meaning: str
    turn: Callable[[Header, KnobValue], Header]
    at_any_step: bool = False
    """Whether a core that runs can be told; else it has to be turned before the first step."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A question of the kind: what if?"""

    step: int
    """The first step that is planned anew."""
    knobs: dict[str, KnobValue] = {}
    """By name, see `KNOBS`."""
    without: tuple[int, ...] = ()
    """Serials of requests that are taken out: at the fork, or the moment they arrive."""

    def __str__(self) -> str:
        turned = [f"{name}={value}" for name, value in self.knobs.items()]
        left_out = [f"without r{serial}" for serial in self.without]
        return ", ".join([f"from step {self.step} on", *turned, *left_out])

    def header(self, recorded: Header, first_step: int) -> Header:
        """The header of a core with every knob turned.

        Args:
            recorded: header of the run that is forked.
            first_step: of that run.

        Raises:
            ConfigError: a knob is unknown, its value is not allowed, or it cannot be turned at this step.
        """
        header = recorded
        for name, value in self.knobs.items():
            knob = KNOBS.get(name)
            if knob is None:
                raise ConfigError(f"There is no knob {name}: a fork turns {', '.join(KNOBS)}.")
            if not knob.at_any_step and self.step > first_step:
                raise ConfigError(f"{name} is chosen at the start: to change it, fork at step {first_step}.")
            header = knob.turn(header, value)
        return header

    def limits(self, in_force: SchedulerConfig) -> SchedulerConfig:
        """What a core that runs is told at the fork, in place of its limits."""
        turned = {name: value for name, value in self.knobs.items() if KNOBS[name].at_any_step}
        return msgspec.structs.replace(in_force, **turned)


def _limit(name: str) -> Callable[[Header, KnobValue], Header]:
    def turn(header: Header, value: KnobValue) -> Header:
        limits = msgspec.structs.replace(header.config.scheduler, **{name: _number(name, value)})
        return _with(header, scheduler=limits)

    return turn


def _policy(header: Header, value: KnobValue) -> Header:
    policy: Policy = value  # type: ignore[assignment]  # checked by the struct
    return _with(header, scheduler=msgspec.structs.replace(header.config.scheduler, policy=policy))


def _prefix_caching(header: Header, value: KnobValue) -> Header:
    return _with(header, cache=msgspec.structs.replace(header.config.cache, enable_prefix_caching=bool(value)))


def _num_gpu_blocks(header: Header, value: KnobValue) -> Header:
    number = _number("num_gpu_blocks", value)
    if number < 2:
        raise ConfigError(f"num_gpu_blocks must be at least 2, the null block and one more, got {number}.")
    return _with_pool(header, number, header.kv_cache.block_size)


def _block_size(header: Header, value: KnobValue) -> Header:
    """The memory stays the same, so blocks of another size are fewer or more."""
    size = _number("block_size", value)
    header = _with(header, cache=msgspec.structs.replace(header.config.cache, block_size=size))
    slots = (header.kv_cache.num_gpu_blocks - 1) * header.kv_cache.block_size
    return _with_pool(header, 1 + slots // size, size)


def _num_drafts(header: Header, value: KnobValue) -> Header:
    number, speculative = _number("num_speculative_tokens", value), header.config.speculative
    if speculative is None:
        if number == 0:
            return header
        raise ConfigError("num_speculative_tokens must be 0: nobody drafted in the recorded run.")
    if number == 0:
        return _with(header, speculative=None)
    if number > header.model.max_model_len:
        raise ConfigError(
            f"num_speculative_tokens must be at most max_model_len={header.model.max_model_len}, got {number}."
        )
    return _with(header, speculative=msgspec.structs.replace(speculative, num_speculative_tokens=number))


KNOBS: Mapping[str, Knob] = {
    "max_num_batched_tokens": Knob("token budget of a step", _limit("max_num_batched_tokens"), at_any_step=True),
    "max_num_seqs": Knob("most requests that run at once", _limit("max_num_seqs"), at_any_step=True),
    "long_prefill_token_threshold": Knob(
        "most tokens of one prompt in a step; 0: no limit", _limit("long_prefill_token_threshold"), at_any_step=True
    ),
    "num_gpu_blocks": Knob("blocks of the pool, the null block included", _num_gpu_blocks),
    "block_size": Knob("tokens of a block; the memory stays the same", _block_size),
    "enable_prefix_caching": Knob("whether equal beginnings share blocks", _prefix_caching),
    "policy": Knob("who is served first: fcfs or priority", _policy),
    "num_speculative_tokens": Knob("most drafts per request and step; 0: nobody drafts", _num_drafts),
}


def _number(name: str, value: KnobValue) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be a number, got {value!r}.")
    if value > MOST:
        raise ConfigError(f"{name} must be at most {MOST}, got {value}.")
    return value


def _with(header: Header, **parts: msgspec.Struct | None) -> Header:
    config: EngineConfig = msgspec.structs.replace(header.config, **parts)
    return msgspec.structs.replace(header, config=config)


def _with_pool(header: Header, num_blocks: int, block_size: int) -> Header:
    pool = header.kv_cache
    if num_blocks > max(_MOST_BLOCKS, pool.num_gpu_blocks):
        raise ConfigError(f"A fork has at most {_MOST_BLOCKS} blocks, got {num_blocks} of {block_size} tokens.")
    groups = tuple(
        msgspec.structs.replace(group, block_bytes=group.block_bytes * block_size // pool.block_size)
        for group in pool.groups
    )
    kv_cache: KVCacheConfig = msgspec.structs.replace(
        pool, num_gpu_blocks=num_blocks, block_size=block_size, groups=groups
    )
    return msgspec.structs.replace(header, kv_cache=kv_cache)
