"""Many values as a few numbers: mean, median, standard deviation, percentiles. Without numpy, with numpy's meaning."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a set of values looks like; all but `count` in the unit of the values."""

    count: int
    mean: float
    median: float
    std: float
    """Of the population: divided by `count`, as `numpy.std` does."""
    percentiles: dict[float, float]
    """By percentage, e.g. 99."""

    @classmethod
    def of(cls, values: Sequence[float], percentiles: Sequence[float]) -> Distribution:
        """Sum up at least one value."""
        ordered = sorted(values)
        mean = math.fsum(ordered) / len(ordered)
        variance = math.fsum((value - mean) ** 2 for value in ordered) / len(ordered)
        return cls._of(ordered, mean, variance, percentiles)

    @classmethod
    def of_counts(cls, counts: Mapping[float, int], percentiles: Sequence[float]) -> Distribution:
        """The same of values each of which occurs so many times."""
        ordered = _Counted(sorted(counts.items()))
        mean = math.fsum(value * count for value, count in counts.items()) / len(ordered)
        variance = math.fsum((value - mean) ** 2 * count for value, count in counts.items()) / len(ordered)
        return cls._of(ordered, mean, variance, percentiles)

    @classmethod
    def _of(cls, ordered: Sequence[float], mean: float, variance: float, percentiles: Sequence[float]) -> Distribution:
        return cls(
            count=len(ordered),
            mean=mean,
            median=percentile(ordered, 50),
            std=math.sqrt(variance),
            percentiles={percentage: percentile(ordered, percentage) for percentage in percentiles},
        )


class _Counted(Sequence[float]):
    """Ordered values that occur several times, without writing them out."""

    def __init__(self, counts: Sequence[tuple[float, int]]) -> None:
        self._values = [value for value, _ in counts]
        self._ends = list(accumulate(count for _, count in counts))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, place: Any) -> Any:
        return self._values[bisect_right(self._ends, place)]


def percentile(ordered: Sequence[float], percentage: float) -> float:
    """The value below which so many per cent of at least one sorted value lie, as `numpy.percentile` computes it.

    Linear between neighbours: with n values it stands at position (n - 1) × percentage / 100, counted from 0 (method 7
    of Hyndman & Fan, 1996).
    """
    position = (len(ordered) - 1) * percentage / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
