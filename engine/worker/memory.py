"""How much memory the device has, and how much of it a piece of work takes at its peak."""

from __future__ import annotations

import platform
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

GIB = 1 << 30
_CGROUP = Path("/sys/fs/cgroup")


class Memory(NamedTuple):
    """Bytes of a device: all it has, and what can still be taken."""

    total: int
    available: int


def device_memory(device: torch.device) -> Memory:
    """Memory of a GPU, or of the host as far as this process's control group may use it."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return Memory(total, free)
    return _host_memory()


def device_name(device: torch.device) -> str:
    """What the maker calls a GPU; of a CPU, its architecture."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()


def peak_bytes(work: Callable[[], None], device: torch.device) -> int:
    """Run some work and return by how many bytes it raised the memory in use at its peak."""
    if device.type == "cuda":
        # What torch has reserved is what the device lacks, be it in use or in torch's own cache.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_reserved(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_reserved(device) - before
    before = _reset_peak_resident_bytes()
    work()
    return max(0, _peak_resident_bytes() - before)


def gib(num_bytes: int) -> str:
    """Bytes as a person reads them, `1.25 GiB` or `38.2 MiB`."""
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB else f"{num_bytes / (1 << 20):.1f} MiB"


def _host_memory() -> Memory:
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():  # macOS: what is reclaimable is not told, so all of it counts
        import os

        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Memory(total, total)
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    total, available = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    limit = _CGROUP / "memory.max"
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        cached = int(stat["active_file"]) + int(stat["inactive_file"])  # given up when memory runs short
        used = int((_CGROUP / "memory.current").read_text()) - cached
        return Memory(min(total, int(text)), min(available, max(0, int(text) - used)))
    return Memory(total, available)


def _reset_peak_resident_bytes() -> int:
    """Forget the highest resident size so far, where the system can (Linux), and return the one to measure from."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _peak_resident_bytes()
    return _status_bytes("VmRSS")


def _peak_resident_bytes() -> int:
    if sys.platform == "linux":
        return _status_bytes("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status does not tell {field}.")
