"""Kernels are lazy: nothing imports Triton before the first launch."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from kernels.jit import cdiv, jit, next_power_of_2, runs_on_triton


def test_importing_and_running_on_the_cpu_imports_no_triton() -> None:
    program = """
import sys, torch
from kernels import gumbel_sampling, logits_bitmask, penalties, philox, rejection_sampling
from kernels import rms_norm, rotary_embedding, silu_and_mul, top_k_top_p
rms_norm.rms_norm(torch.ones(2, 8), torch.ones(8), 1e-6)
rows = torch.ones(2, dtype=torch.int64)
gumbel_sampling.gumbel_max(torch.ones(2, 8), rows.float(), rows, rows, philox.Stream.TARGET)
assert "triton" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_cpu_and_double_precision_are_left_to_torch() -> None:
    assert not runs_on_triton(torch.ones(1)) and not runs_on_triton(torch.ones(1, dtype=torch.float64))


def test_a_kernel_is_no_function() -> None:
    @jit
    def kernel() -> None:
        """Never compiled."""

    with pytest.raises(TypeError, match="kernel runs inside other kernels"):
        kernel()


def test_sizes() -> None:
    assert [next_power_of_2(size) for size in (1, 2, 3, 4, 5, 1024, 1025)] == [1, 2, 4, 4, 8, 1024, 2048]
    assert [cdiv(size, 4) for size in (0, 1, 4, 5)] == [0, 1, 1, 2]
