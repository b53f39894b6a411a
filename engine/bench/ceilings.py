"""`python -m engine.bench.ceilings`: what the memory and the cores of this machine can do, as one line of JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import torch

_READ_BYTES = 512 << 20  # far more than any cache holds
_MATRIX = 2048
_TRIES = 4
_SECONDS = 0.15


def best_rate(work: float, run: Callable[[], object]) -> float:
    """`work` per second of the fastest of a few tries, each of which repeats the run until enough time has passed."""
    run()
    return max(_rate(work, run) for _ in range(_TRIES))


def _rate(work: float, run: Callable[[], object]) -> float:
    count, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < _SECONDS:
        run()
        count += 1
    return count * work / elapsed


def read_bytes_per_second() -> float:
    """Reading memory with all threads: a sum, or a matrix-vector product, whichever streams its operand faster."""
    values = torch.ones(_READ_BYTES // 4)
    matrix, vector = values.view(-1, _MATRIX), torch.ones(_MATRIX)
    return max(best_rate(_READ_BYTES, values.sum), best_rate(_READ_BYTES, lambda: matrix @ vector))


def flops_per_second() -> float:
    """A product of two square float32 matrices: a multiplication and an addition for each of n³ pairs."""
    left, right = torch.ones(_MATRIX, _MATRIX), torch.ones(_MATRIX, _MATRIX)
    return best_rate(2.0 * _MATRIX**3, lambda: left @ right)


def main() -> None:
    """Measure and print."""
    with torch.inference_mode():
        measured = {"read_bytes_per_second": read_bytes_per_second(), "flops_per_second": flops_per_second()}
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
