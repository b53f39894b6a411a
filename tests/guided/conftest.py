"""What the tests of guided decoding share: the vocabulary of orrery-tiny, and an engine for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.frontend.tokenizer import Tokenizer
from engine.llm import LLM


@pytest.fixture(scope="session")
def tokenizer(tiny_model_path: Path) -> Tokenizer:
    return Tokenizer.from_folder(tiny_model_path, "orrery-tiny")


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    """An engine that several tests use, one after the other."""
    llm = LLM("orrery-tiny", max_num_seqs=16, enable_prefix_caching=False)
    yield llm
    llm.llm_engine.close()
