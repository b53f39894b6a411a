"""How long the parts of a step take: read from the host's clock, or marked in the device's stream."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class StepClock(Protocol):
    """Marks moments of a step, and tells later how far they are apart."""

    def mark(self) -> Any:
        """This moment."""

    def nanoseconds(self, begin: Any, end: Any) -> int:
        """From one mark to a later one."""


class HostClock:
    """For a device that has done what it was given when the call returns."""

    def mark(self) -> int:
        """See `StepClock`."""
        return time.perf_counter_ns()

    def nanoseconds(self, begin: int, end: int) -> int:
        """See `StepClock`."""
        return end - begin


class CudaClock:
    """For a device that works while Python goes on: events in its stream, so that measuring holds nobody up."""

    def mark(self) -> torch.cuda.Event:
        """See `StepClock`."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def nanoseconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> int:
        """See `StepClock`. Waits until the device has come to `end`."""
        end.synchronize()
        return round(begin.elapsed_time(end) * 1e6)


def clock_of(device: torch.device) -> StepClock:
    """The clock that suits a device."""
    return CudaClock() if device.type == "cuda" else HostClock()
