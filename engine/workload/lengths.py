"""How long prompts and outputs are: distributions of a number of tokens, and the words that name one.

| words | meaning |
| --- | --- |
| `512` | always 512 |
| `uniform:128:1024` | every length from 128 to 1024 alike |
| `normal:512:128` | mean and standard deviation |
| `lognormal:512:400` | mean and standard deviation, of the lengths themselves and not of their logarithms |
| `empirical:FILE` | drawn from the lengths in a file, one whole number a line |

A draw is rounded, and one below the least length allowed becomes that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import WorkloadError
from engine.workload.reading import text_lines

if TYPE_CHECKING:
    from random import Random

DrawLength = Callable[["Random"], int]
"""A number of tokens, drawn with a generator."""


def parse_lengths(name: str, words: str, least: int) -> DrawLength:
    """A distribution from its words.

    Args:
        name: what has these lengths, for the sentence of an error.
        words: see the table of this module.
        least: the smallest length allowed.

    Raises:
        WorkloadError: the words name no distribution, or one whose numbers are out of range.
        OSError: the file of an empirical distribution cannot be read.
    """
    kind, _, rest = words.partition(":")
    if kind == "empirical" and rest:
        return _empirical(Path(rest), least)
    numbers = _numbers(rest.split(":") if rest else [kind])
    match kind, numbers:
        case _, [length] if not rest and length == int(length) and length >= least:
            return lambda rng: int(length)
        case "uniform", [low, high] if least <= low <= high and low == int(low) and high == int(high):
            return lambda rng: rng.randint(int(low), int(high))
        case "normal", [mean, std] if mean >= least and std >= 0:
            return lambda rng: max(least, round(rng.normalvariate(mean, std)))
        case "lognormal", [mean, std] if mean >= max(least, 1) and std >= 0:
            return _lognormal(mean, std, least)
    raise WorkloadError(
        f"{name} must be a number of tokens of at least {least}, uniform:LOW:HIGH, normal:MEAN:STD, "
        f"lognormal:MEAN:STD or empirical:FILE, got {words!r}."
    )


def _numbers(words: list[str]) -> list[float]:
    """None at all if one of the words is no finite number."""
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        return []
    return numbers if all(map(math.isfinite, numbers)) else []


def _lognormal(mean: float, std: float, least: int) -> DrawLength:
    # Of a lognormal variable with parameters µ, σ: mean exp(µ + σ²/2), variance (exp(σ²) - 1) × mean².
    variance = math.log1p((std / mean) ** 2)
    mu, sigma = math.log(mean) - variance / 2, math.sqrt(variance)
    return lambda rng: max(least, round(rng.lognormvariate(mu, sigma)))


def _empirical(path: Path, least: int) -> DrawLength:
    lengths = []
    for number, line in text_lines(path):
        if line.strip():
            if not line.strip().isascii() or not line.strip().isdigit() or int(line) < least:
                raise WorkloadError(f"{path}, line {number}: this is no whole number of at least {least}.")
            lengths.append(int(line))
    if not lengths:
        raise WorkloadError(f"{path}: it holds no lengths.")
    return lambda rng: rng.choice(lengths)
