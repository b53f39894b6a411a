"""How many threads the CPU kernels use: one for each physical core that this process may run on, and is given time on.

A container often sees all cores of its host and is given the time of a few: more threads than that would wait for one
another most of the time. Two threads on one core share its multipliers, and gain nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

_CGROUP = Path("/sys/fs/cgroup")
_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def size_threads() -> int:
    """Set the number of torch's threads, which the kernels share; `OMP_NUM_THREADS` stands above it.

    Returns:
        The number in use.
    """
    if not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(min(_physical_cores(), _granted_cores()))
    return torch.get_num_threads()


def _physical_cores() -> int:
    """Cores among the processors that this process may run on; two hyperthreads of one core count once."""
    if not hasattr(os, "sched_getaffinity"):  # macOS, Windows
        return torch.get_num_threads()
    processors = os.sched_getaffinity(0)
    return len({_siblings(processor) for processor in processors})


def _siblings(processor: int) -> str:
    """Names the core that a processor is a thread of."""
    path = Path(_TOPOLOGY.format(processor))
    return path.read_text().strip() if path.exists() else str(processor)


def _granted_cores(cgroup: Path = _CGROUP) -> int:
    """Cores whose whole time the container is given, at least one; unlimited where nothing says otherwise."""
    version_2 = cgroup / "cpu.max"
    if version_2.exists():
        quota, period = version_2.read_text().split()
        return 1 << 16 if quota == "max" else max(1, int(quota) // int(period))
    version_1 = cgroup / "cpu/cpu.cfs_quota_us"
    if version_1.exists() and int(version_1.read_text()) > 0:
        return max(1, int(version_1.read_text()) // int((cgroup / "cpu/cpu.cfs_period_us").read_text()))
    return 1 << 16
