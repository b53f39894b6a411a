"""Workloads made up from a line of words, as `--workload synthetic:…` takes it.

::

    synthetic:rate=10,burstiness=0.5,input=lognormal:512:300,output=256,num=1000,prefix=128,groups=4

| key | meaning | default |
| --- | --- | --- |
| `num` | requests | 1000 |
| `rate` | requests per second; `inf`: all at once | inf |
| `burstiness` | shape of the Gamma distribution between arrivals, see `engine.workload.arrivals` | 1 |
| `input` | prompt tokens behind the prefix, see `engine.workload.lengths` | 512 |
| `output` | tokens to generate, likewise | 128 |
| `prefix` | tokens that the prompts of a group begin with | 0 |
| `groups` | how many different prefixes; each prompt draws one | 1 |
| `priorities` | each request draws a priority from 0 to this less one | 1 |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import WorkloadError
from engine.workload.arrivals import arrival_times
from engine.workload.lengths import DrawLength, parse_lengths
from engine.workload.prompt_shape import PromptShape, Span
from engine.workload.request import WorkloadRequest

if TYPE_CHECKING:
    from random import Random

PREFIX = "synthetic:"

_DEFAULTS = {
    "num": "1000",
    "rate": "inf",
    "burstiness": "1",
    "input": "512",
    "output": "128",
    "prefix": "0",
    "groups": "1",
    "priorities": "1",
}


@dataclass(frozen=True, slots=True)
class SyntheticSpec:
    """What is made up."""

    num: int
    rate: float
    burstiness: float
    input: DrawLength
    output: DrawLength
    prefix: int
    groups: int
    priorities: int

    @classmethod
    def parse(cls, text: str) -> SyntheticSpec:
        """Read `synthetic:key=value,…`.

        Raises:
            WorkloadError: an unknown key, or a value that is none.
            OSError: the file of an empirical distribution cannot be read.
        """
        words = _DEFAULTS | dict(_pairs(text.removeprefix(PREFIX)))
        prefix = _whole("prefix", words["prefix"], 0)
        return cls(
            num=_whole("num", words["num"], 1),
            rate=_real("rate", words["rate"]),
            burstiness=_real("burstiness", words["burstiness"]),
            input=parse_lengths("input", words["input"], least=0 if prefix else 1),
            output=parse_lengths("output", words["output"], least=1),
            prefix=prefix,
            groups=_whole("groups", words["groups"], 1),
            priorities=_whole("priorities", words["priorities"], 1),
        )

    def requests(self, rng: Random) -> Iterator[WorkloadRequest]:
        """Make them up, one by one, in the order of their arrival.

        Args:
            rng: draws arrivals, lengths, groups and priorities.

        Raises:
            WorkloadError: the rate or the burstiness is out of range.
        """
        times = arrival_times(rng, self.rate, self.burstiness)
        for number, arrival_ns in zip(range(self.num), times, strict=False):
            prefix = (Span(rng.randrange(self.groups), self.prefix),) if self.prefix else ()
            rest = PromptShape.unlike_others(self.input(rng), number).spans
            yield WorkloadRequest(
                PromptShape(prefix + rest),
                self.output(rng),
                arrival_ns,
                priority=rng.randrange(self.priorities) if self.priorities > 1 else 0,
            )


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for word in filter(None, text.split(",")):
        key, _, value = word.partition("=")
        if key not in _DEFAULTS:
            raise WorkloadError(f"A synthetic workload has the keys {', '.join(_DEFAULTS)}, not {key!r}.")
        yield key, value


def _whole(key: str, word: str, least: int) -> int:
    if not (word.isascii() and word.isdigit() and int(word) >= least):
        raise WorkloadError(f"{key} must be a whole number of at least {least}, got {word!r}.")
    return int(word)


def _real(key: str, word: str) -> float:
    try:
        return float(word)
    except ValueError as error:
        raise WorkloadError(f"{key} must be a number above 0, or inf, got {word!r}.") from error
