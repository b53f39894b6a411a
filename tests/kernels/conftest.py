"""Random inputs are the same in every run; without a GPU, Triton's kernels run in its interpreter."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

# Read when Triton is imported, which nothing does before the first launch.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def device() -> Iterator[str]:
    """Where Triton's kernels run; memory that they are to write is full of NaN, or of the largest integer."""
    pytest.importorskip("triton")
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(3).isnan().all()
    yield "cuda" if torch.cuda.is_available() else "cpu"
    torch.use_deterministic_algorithms(False)
