"""One small random model for the tests of the worker."""

from __future__ import annotations

from pathlib import Path

import pytest

# isort: off
import tests.interpreted  # noqa: F401 - before Transformers, which imports Triton
import transformers
# isort: on

from tests.models.random_models import save_random_model


@pytest.fixture(scope="session")
def random_llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, transformers.PreTrainedModel]:
    """The model's folder, and Hugging Face's own instance of it."""
    folder = tmp_path_factory.mktemp("random_llama")
    return folder, save_random_model(folder, "llama")
