"""Threads are sized by the cores there are and the time that is granted on them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.worker import cpu_threads
from engine.worker.cpu_threads import size_threads


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "max 100000\n"}, 1 << 16),
        ({"cpu.max": "350000 100000\n"}, 3),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n"}, 1 << 16),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ({}, 1 << 16),
    ],
)
def test_the_time_that_a_container_grants(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_threads._granted_cores(tmp_path) == expected


def test_hyperthreads_of_one_core_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(cpu_threads, "_siblings", lambda processor: f"{processor % 4},{processor % 4 + 4}")
    monkeypatch.setattr(cpu_threads, "_granted_cores", lambda: 1 << 16)
    assert size_threads() == 4
    assert torch.get_num_threads() == 4


def test_what_the_user_says_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(3)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert size_threads() == 3
