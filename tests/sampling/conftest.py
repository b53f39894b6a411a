"""One engine with the shipped model, and Hugging Face's of the same weights to compare it with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from engine.frontend.tokenizer import Tokenizer
from engine.llm import LLM
from engine.llm_engine import LLMEngine
from engine.outputs import RequestOutput

MODEL = "orrery-tiny"
ARGS: dict[str, Any] = {
    "dtype": "float32",
    "device": "cpu",
    "num_gpu_blocks_override": 130,
    "max_model_len": 256,
    "max_num_seqs": 8,
}
STORY = "Once upon a time"


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    """An engine that every test leaves as it found it, but for its prefix cache."""
    llm = LLM(model=MODEL, **ARGS)
    yield llm
    llm.llm_engine.close()


@pytest.fixture(scope="session")
def tokenizer(llm: LLM) -> Tokenizer:
    return llm.get_tokenizer()


class Reference:
    """Hugging Face's model."""

    def __init__(self, folder: Path) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """[tokens, vocab_size]."""
        logits: Tensor = self.model(torch.tensor([list(token_ids)])).logits[0]
        return logits

    def logprobs(self, token_ids: Sequence[int]) -> Tensor:
        """[tokens, vocab_size]: row i tells of the token behind the i-th."""
        return torch.log_softmax(self.logits(token_ids), dim=-1)


@pytest.fixture(scope="session")
def reference(tiny_model_path: Path) -> Reference:
    return Reference(tiny_model_path)


def tokens_of(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    """Of every completion of every prompt."""
    return [completion.token_ids for output in outputs for completion in output.outputs]


def run(engine: LLMEngine) -> list[RequestOutput]:
    """Step until nothing is left; every output on the way."""
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs
