"""What tests share: where the models and the browser are, and why a test that lacks one of them is skipped."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from engine.errors import ModelError
from engine.models.store import resolve_model

# Tests ask no hub: what they need is in the repository, in the cache, or made by them.
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("there is no CUDA device")


@pytest.fixture(scope="session")
def chromium_path() -> Path:
    """The browser of the `browser` tests; Playwright's own build is not downloaded."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return Path(found)
    pytest.skip("there is no Chromium (on Debian: apt install chromium)")


@pytest.fixture(scope="session")
def tiny_model_path() -> Path:
    """The folder of `orrery-tiny`, which the repository ships."""
    return resolve_model("orrery-tiny")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The folder of SmolLM2-135M-Instruct, the real model."""
    try:
        return resolve_model("smollm2-135m")
    except ModelError as error:
        pytest.skip(str(error))
