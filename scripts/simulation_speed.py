"""Measures how fast the simulator is: `python scripts/simulation_speed.py`.

Llama-3.1-8B on an H100, requests of 512 tokens in and 256 out that come as a Poisson process at a share of the most
that the configuration can serve, nothing recorded. Prints how many seconds of the simulated engine pass in a second,
what a step and a row of it cost, what memory the process takes as requests finish, and in what stretches of steps
nothing but decoding happens: they bound what skipping such stretches could gain.
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
from itertools import groupby
from pathlib import Path

from engine.config import EngineConfig
from engine.trace.recorder import Recorder
from engine.workload import open_workload
from sim.cost_model.device_file import find_device
from sim.cost_model.model_files import find_architecture
from sim.scenario import Scenario, resolve_scenario
from sim.simulation import Simulation
from sim.timeline import Timeline

_MODEL = "llama-3.1-8b"
#: Requests by which the most that can be served is found, and stretches are looked at.
_FEW = 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--load", type=float, default=0.9, help="share of the most that can be served")
    arguments = parser.parse_args()
    scenario = _scenario()
    rate = arguments.load * _most_per_second(scenario)
    print(f"{arguments.requests:,} requests at {rate:.1f} per second, {arguments.load:.0%} of the most")
    _speed(scenario, rate, arguments.requests)
    _stretches(scenario, rate)


def _scenario() -> Scenario:
    config = EngineConfig.from_args(_MODEL, max_num_seqs=256, max_num_batched_tokens=8192)
    return resolve_scenario(config, find_device("h100"), find_architecture(_MODEL))


def _simulate(scenario: Scenario, rate: float, num: int, trace: Path | None = None) -> Simulation:
    requests = open_workload(f"synthetic:rate={rate},input=512,output=256,num={num}", random.Random(0))
    record = None if trace is None else lambda clock: Recorder.to_file(trace, scenario.header, clock=clock)
    memory: list[int] = []

    def finished() -> None:
        if trace is None and num > _FEW:
            memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

    simulation = Simulation(scenario, trace=record, finished=finished)
    simulation.run(requests)
    for share in (0.25, 0.5, 1.0) if memory else ():
        place = int(share * len(memory)) - 1
        print(f"  peak memory with {place + 1:,} requests finished: {memory[place] / 1024:,.0f} MiB")
    return simulation


def _most_per_second(scenario: Scenario) -> float:
    """Requests per second when all are there from the beginning."""
    simulation = _simulate(scenario, 1e6, _FEW)
    return _FEW / (simulation.clock.now_ns / 1e9)


def _speed(scenario: Scenario, rate: float, num: int) -> None:
    began = time.perf_counter()
    simulation = _simulate(scenario, rate, num)
    seconds, simulated = time.perf_counter() - began, simulation.clock.now_ns / 1e9
    rows = num * 256
    print(f"  {simulated:,.1f} s simulated in {seconds:,.1f} s: {simulated / seconds:.1f} times as fast as real time")
    print(
        f"  {simulation.num_steps:,} steps of {rows / simulation.num_steps:.0f} rows: "
        f"{seconds / simulation.num_steps * 1e6:,.0f} µs a step, {seconds / rows * 1e6:.2f} µs a row"
    )


def _stretches(scenario: Scenario, rate: float) -> None:
    """Steps in a row in which nobody comes, goes, or computes a prompt."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "run.jsonl.zst"
        _simulate(scenario, rate, _FEW, trace)
        series = Timeline.open(trace).series
    steady = [not facts.prefill_tokens and not facts.finishes for facts in series]
    lengths = [len(list(run)) for is_steady, run in groupby(steady) if is_steady]
    skipping = len(steady) - sum(lengths) + len(lengths)
    print(
        f"  {sum(steady) / len(steady):.0%} of its steps only decode, in stretches of "
        f"{sum(lengths) / len(lengths):.1f} steps: "
        f"if each stretch cost one step, {len(steady):,} steps would cost {skipping:,}"
    )


if __name__ == "__main__":
    main()
