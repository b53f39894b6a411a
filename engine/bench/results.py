"""What a comparison found, as it stands in `docs/benchmarks.json`: every sample, so that any figure can be checked."""

from __future__ import annotations

import os
import platform
import statistics
from pathlib import Path

import msgspec
import torch

#: Runnable processes beside the benchmark's own, above which a machine does not count as quiet.
QUIET_LOAD = 0.5


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where it was measured."""

    cpu: str
    capability: str
    """The vector instructions that torch uses."""
    cores: int
    threads: int
    """That each contender was given."""
    load_before: float
    """Mean number of runnable processes in the minute before: what else the machine was doing."""
    python: str
    torch: str

    @classmethod
    def this(cls, threads: int) -> Machine:
        """The machine that runs this, now."""
        return cls(
            cpu=_cpu_name(),
            capability=torch.backends.cpu.get_cpu_capability(),
            cores=os.cpu_count() or 1,
            threads=threads,
            load_before=os.getloadavg()[0],
            python=platform.python_version(),
            torch=str(torch.__version__),
        )

    @property
    def quiet(self) -> bool:
        """Whether nothing else ran to speak of."""
        return self.load_before <= QUIET_LOAD


class Samples(msgspec.Struct, kw_only=True):
    """One contender on one workload, an entry per round."""

    tokens_per_second: list[float] = []
    """Output tokens of all requests, divided by the seconds from the first request to the last token."""
    ttft: list[float] = []
    """Seconds to the first token, mean over the requests."""
    itl: list[float] = []
    """Seconds between two tokens of a request, mean over the requests."""
    failure: str | None = None
    """Why there are no more samples."""


class ContenderResult(msgspec.Struct, kw_only=True):
    """All that was measured of one contender."""

    engine: str
    variant: str
    bytes_per_weight: float | None
    seconds_to_ready: list[float] = []
    """From the start of the process until it takes requests; the first entry may hold work that is cached later on."""
    seconds_to_first_token: list[float] = []
    """From there to the first token of a prompt of 32."""
    peak_memory_bytes: list[int] = []
    """The most that was resident, over all its processes."""
    workloads: dict[str, Samples] = {}
    failure: str | None = None
    """Why it could not be measured at all."""

    @property
    def name(self) -> str:
        """As it stands in tables."""
        return f"{self.engine} {self.variant}"

    def speed(self, workload: str) -> float | None:
        """Median output tokens per second; None: not measured."""
        samples = self.workloads.get(workload)
        return statistics.median(samples.tokens_per_second) if samples and samples.tokens_per_second else None


class Comparison(msgspec.Struct, kw_only=True):
    """A whole run of `python -m engine.bench`."""

    model: str
    rounds: int
    workloads: list[str]
    machine: Machine
    read_bytes_per_second: list[float] = []
    """The memory's speed, an entry per round."""
    flops_per_second: list[float] = []
    """Of a large float32 matrix product, an entry per round."""
    contenders: list[ContenderResult] = []

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
