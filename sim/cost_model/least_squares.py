"""Least squares whose coefficients may not be negative: no work takes less than no time."""

from __future__ import annotations

from collections.abc import Sequence

#: Sweeps over the coefficients; the few of a cost model settle much earlier.
_MOST_SWEEPS = 5_000
_SETTLED = 1e-10


def non_negative_least_squares(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """The x ≥ 0 that makes |rows · x − targets|² least, by cyclic coordinate descent on the normal equations.

    Columns are scaled to unit length first, so that terms of very different units settle alike.

    Args:
        rows: one per observation, each as long as x.
        targets: one per observation.

    Source: Franc, Hlaváč, Navara, "Sequential coordinate-wise algorithm for the non-negative least squares problem",
    2005.
    """
    size = len(rows[0])
    norms = [sum(row[i] * row[i] for row in rows) ** 0.5 or 1.0 for i in range(size)]
    scaled = [[value / norm for value, norm in zip(row, norms, strict=True)] for row in rows]
    gram = [[sum(row[i] * row[j] for row in scaled) for j in range(size)] for i in range(size)]
    gradient = [-sum(row[i] * target for row, target in zip(scaled, targets, strict=True)) for i in range(size)]
    x = [0.0] * size
    for _ in range(_MOST_SWEEPS):
        largest = 0.0
        for i in range(size):
            if not gram[i][i]:
                continue
            better = max(0.0, x[i] - gradient[i] / gram[i][i])
            change = better - x[i]
            if change:
                x[i] = better
                for j in range(size):
                    gradient[j] += change * gram[j][i]
                largest = max(largest, abs(change))
        if largest <= _SETTLED * max(x, default=0.0):
            break
    return [value / norm for value, norm in zip(x, norms, strict=True)]
