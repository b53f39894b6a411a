"""Every backend writes and attends as the definition says, whatever prompts and decodes share a step."""

from __future__ import annotations

import pytest
import torch

from engine.attention.backend import AttentionSpec
from engine.attention.registry import BACKENDS, available_backends, make_backend
from tests.attention.steps import Requests

#: Whole prompts beside chunks, chunks beside decodes, decodes alone.
STEPS = [[17, 5, 0], [1, 6, 9], [1, 1, 1], [0, 1, 1], [1, 9, 1]]
LENGTHS = [sum(shares) for shares in zip(*STEPS, strict=True)]


def spec_of(device: str, dtype: torch.dtype = torch.float32, block_size: int = 8, head_size: int = 16) -> AttentionSpec:
    return AttentionSpec(
        num_heads=4,
        num_kv_heads=2,
        head_size=head_size,
        block_size=block_size,
        dtype=dtype,
        device=torch.device(device),
    )


def check(name: str, spec: AttentionSpec, sliding_window: int | None, tolerance: float) -> None:
    if name not in available_backends(spec):
        pytest.skip(f"{name} is not available here")
    requests = Requests(spec, LENGTHS)
    found = requests.run(make_backend(name, spec), STEPS, sliding_window)
    for step, (outputs, expected) in enumerate(zip(found, requests.expected(STEPS, sliding_window), strict=True)):
        for output, wanted in zip(outputs, expected, strict=True):
            torch.testing.assert_close(output, wanted, atol=tolerance, rtol=tolerance, msg=lambda m: f"{step=} {m}")  # noqa: B023


@pytest.mark.parametrize("sliding_window", [None, 6])
@pytest.mark.parametrize("name", ["torch", "cpu", "triton"])
def test_on_a_cpu(name: str, sliding_window: int | None) -> None:
    check(name, spec_of("cpu"), sliding_window, 1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("sliding_window", [None, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["torch", "triton"])
def test_on_a_gpu(name: str, dtype: torch.dtype, sliding_window: int | None) -> None:
    check(name, spec_of("cuda", dtype, head_size=64), sliding_window, 1e-3 if dtype is torch.float32 else 2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("sliding_window", [None, 6])
@pytest.mark.parametrize(("name", "block_size"), [("flash_attn", 256), ("flashinfer", 16)])
def test_installed_libraries_on_a_gpu(name: str, block_size: int, sliding_window: int | None) -> None:
    check(name, spec_of("cuda", torch.bfloat16, block_size, head_size=64), sliding_window, 2e-2)


def test_all_backends_are_tested() -> None:
    assert set(BACKENDS) == {"torch", "cpu", "triton", "flash_attn", "flashinfer"}
