"""A machine without a C++ compiler has no CPU kernels, and nothing here to test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernels.cpu import library


@pytest.fixture(autouse=True)
def compiled() -> None:
    why = library.why_unavailable()
    if why is not None:
        pytest.skip(why)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
