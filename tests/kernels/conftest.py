"""Random inputs are the same in every run; without a GPU, Triton's kernels run in its interpreter."""

from __future__ import annotations

import os

import pytest
import torch

# Read when Triton is imported, which nothing does before the first launch.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def device() -> str:
    """Where Triton's kernels run."""
    pytest.importorskip("triton")
    return "cuda" if torch.cuda.is_available() else "cpu"
