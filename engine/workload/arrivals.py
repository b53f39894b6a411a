"""When requests come: the points in time of an arrival process, in nanoseconds since the workload began."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from engine.errors import WorkloadError

if TYPE_CHECKING:
    from random import Random

_NS_PER_S = 1e9

#: Of rate and burstiness; with less, the gaps are longer than any number.
_LEAST = 1e-9


def arrival_times(rng: Random, rate: float = math.inf, burstiness: float = 1.0) -> Iterator[int]:
    """Points in time without end, the first one 0; under vLLM's names for what a benchmark may ask for.

    The gaps between them have the mean 1 / rate and follow a Gamma distribution of shape `burstiness`: their
    coefficient of variation is 1 / √burstiness. The sum of many gaps is left as it was drawn, whereas vLLM stretches
    it to the expected span.

    Args:
        rng: draws the gaps.
        rate: requests per second, at least 1e-9; inf: all come at once.
        burstiness: at least 1e-9; below 1: in bursts; 1: a Poisson process; above 1: more even; inf: evenly spaced.

    Raises:
        WorkloadError: the rate or the burstiness is out of range.
    """
    if not rate >= _LEAST:
        raise WorkloadError(f"rate must be at least {_LEAST:g} requests per second, or inf, got {rate:g}.")
    if not burstiness >= _LEAST:
        raise WorkloadError(
            f"burstiness must be at least {_LEAST:g}, or inf for evenly spaced requests, got {burstiness:g}."
        )
    return _accumulated(rng, rate, burstiness)


def _accumulated(rng: Random, rate: float, burstiness: float) -> Iterator[int]:
    seconds = 0.0
    while True:
        yield round(seconds * _NS_PER_S)
        if math.isinf(rate):
            continue
        seconds += 1 / rate if math.isinf(burstiness) else rng.gammavariate(burstiness, 1 / (rate * burstiness))
