"""What a program has set for its own tensors does not reach the kernels, which are given addresses of float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from engine import LLM, SamplingParams

EAGLE = {"method": "eagle", "num_speculative_tokens": 3}


@pytest.fixture(params=[torch.bfloat16, torch.float64])
def default_dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    yield request.param
    torch.set_default_dtype(torch.float32)


def told(speculative_config: dict[str, Any] | None) -> list[list[int]]:
    llm = LLM("orrery-tiny", max_model_len=128, speculative_config=speculative_config)
    outputs = llm.generate(
        ["Once upon a time", "The clock in the tower"], SamplingParams(temperature=0, max_tokens=24), use_tqdm=False
    )
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize("speculative_config", [None, EAGLE], ids=["plain", "eagle"])
def test_another_default_dtype_changes_nothing(
    default_dtype: torch.dtype, speculative_config: dict[str, Any] | None
) -> None:
    wanted = told(speculative_config)
    torch.set_default_dtype(default_dtype)
    assert told(speculative_config) == wanted
