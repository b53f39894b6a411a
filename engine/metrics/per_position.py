"""Counts by position: of a request's drafts the first, the second, …"""

from __future__ import annotations

from collections.abc import Iterable


def counted_up_to(num_positions: int, counts: tuple[int, ...]) -> tuple[int, ...]:
    """One more at each of the first positions."""
    return summed([counts, (1,) * num_positions])


def summed(counts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The sums of counts, position by position."""
    sums: list[int] = []
    for each in counts:
        sums += [0] * (len(each) - len(sums))
        for place, number in enumerate(each):
            sums[place] += number
    return tuple(sums)
