"""One run of the engine, and the same run of the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.bench.timed import measure_timed
from engine.config import EngineConfig
from engine.metrics.summary import MetricsSummary
from engine.workload import WorkloadRequest
from scripts.accuracy.runs import COMMON, HeldOutRun
from sim.cost_model.calibrated import CalibratedDevice
from sim.scenario import resolve_scenario
from sim.simulation import Simulation


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A run in numbers; latencies in milliseconds."""

    output_throughput: float
    """Output tokens per second."""
    median_ttft: float
    median_itl: float
    median_e2el: float
    p99_ttft: float
    p99_itl: float
    p99_e2el: float
    num_preemptions: int
    prefix_cache_hit_rate: float
    duration: float
    """Seconds."""

    @classmethod
    def of(cls, summary: MetricsSummary) -> Figures:
        """What is compared."""
        latencies = {name: summary.latencies_ms[name] for name in ("ttft", "itl", "e2el")}
        return cls(
            output_throughput=summary.output_throughput or 0.0,
            **{f"median_{name}": values.median for name, values in latencies.items()},
            **{f"p99_{name}": values.percentiles[99] for name, values in latencies.items()},
            num_preemptions=summary.num_preemptions,
            prefix_cache_hit_rate=summary.prefix_cache_hit_rate or 0.0,
            duration=summary.duration,
        )


def real(
    model: str, requests: Sequence[WorkloadRequest], engine_args: Mapping[str, Any], trace: Path
) -> MetricsSummary:
    """Serve them with the engine."""
    return measure_timed(model, requests, trace, **{**COMMON, **engine_args})


def predicted(
    device: CalibratedDevice, requests: Sequence[WorkloadRequest], engine_args: Mapping[str, Any]
) -> MetricsSummary:
    """Serve them in the simulator."""
    config = EngineConfig.from_args(device.model.name, **{**COMMON, **engine_args})
    return Simulation(resolve_scenario(config, device, None)).run(requests).summarise()


def capacity(device: CalibratedDevice, run: HeldOutRun) -> float:
    """Requests per second that the engine can serve, as the simulator says."""
    return predicted(device, run.backlog(), run.engine_args).request_throughput or 0.0
