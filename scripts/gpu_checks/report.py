"""What a run finds, and how large a run is."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass
class Report:
    """What was found; `write` may be called at any time."""

    machine: dict[str, Any]
    ceilings: dict[str, float] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    step_times: list[dict[str, Any]] = field(default_factory=list)
    throughput: list[dict[str, Any]] = field(default_factory=list)
    startup: dict[str, list[Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def check(self, name: str, passed: bool | None, detail: str = "") -> None:
        """Note a verdict and show it; None: it could not be had."""
        self.checks.append({"name": name, "passed": passed, "detail": detail})
        word = {True: "ok", False: "FAILED", None: "left out"}[passed]
        print(f"  {word:9}{name}" + (f": {detail}" if detail else ""), flush=True)

    @property
    def failed(self) -> list[str]:
        """Names of the checks that failed."""
        return [check["name"] for check in self.checks if check["passed"] is False]

    def show_tables(self) -> None:
        """Print step times and throughput."""
        if self.step_times:
            print("\ndecode step of orrery-tiny, milliseconds\n  batch   captured      eager")
            by_batch: dict[int, dict[str, float]] = {}
            for row in self.step_times:
                by_batch.setdefault(row["batch"], {})[row["mode"]] = row["milliseconds"]
            for batch, modes in by_batch.items():
                cells = (f"{modes[mode]:11.3f}" if mode in modes else f"{'–':>11}" for mode in ("captured", "eager"))
                print(f"  {batch:5}{''.join(cells)}")
        if self.throughput:
            print("\nmodel         phase     batch       tokens/s        ms   share of the device's")
            for row in self.throughput:
                print(
                    f"{row['model']:14}{row['phase']:8}{row['batch']:7}{row['tokens_per_s']:15,.0f}"
                    f"{row['milliseconds']:10.3f}{row['share']:8.1%} {row['of']}"
                )

    def write(self, path: Path | None) -> None:
        """Write everything down as JSON."""
        if path is not None:
            path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


@dataclass
class Settings:
    """How large the run is."""

    device: str
    """`cpu` or `cuda`."""
    quick: bool
    """Small sizes: whether it works, not how fast."""
    deadline: float
    """In `time.monotonic` seconds."""

    @property
    def cuda(self) -> bool:
        """Whether there is a GPU."""
        return self.device == "cuda"

    @property
    def batches(self) -> tuple[int, ...]:
        """Decodes of a step."""
        return (1, 4) if self.quick else (1, 8, 32, 128, 256)

    @property
    def prefill(self) -> tuple[int, int]:
        """Prompts, and tokens of each."""
        return (4, 32) if self.quick else (16, 512)

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self.deadline - time.monotonic()

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.cuda:
            torch.cuda.synchronize()


def name_of(dtype: torch.dtype) -> str:
    """`float32` and the like."""
    return str(dtype).removeprefix("torch.")
