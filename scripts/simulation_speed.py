"""Measures how fast the simulator is: `python scripts/simulation_speed.py`.

Llama-3.1-8B on an H100, requests of 512 tokens in and 256 out that come as a Poisson process at a share of the most
that the configuration can serve, nothing recorded; with the prefix cache, which has to hash every block and finds
nothing in these prompts, and without it; looking at every row of every step, and fast-forwarding. Prints how many
seconds of the simulated engine pass in a second, what a step and a row of it cost, and what memory the process takes as
requests finish.
"""

from __future__ import annotations

import argparse
import random
import resource
import time

from engine.config import EngineConfig
from engine.workload import open_workload
from sim.cost_model.device_file import find_device
from sim.cost_model.model_files import find_architecture
from sim.scenario import Scenario, resolve_scenario
from sim.simulation import Simulation

_MODEL = "llama-3.1-8b"
#: Requests by which the most that can be served is found.
_FEW = 1000
_HOW = {False: "every row of every step", True: "fast-forward"}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--load", type=float, default=0.9, help="share of the most that can be served")
    arguments = parser.parse_args()
    rate = arguments.load * _most_per_second(_scenario(prefix_caching=True))
    print(f"{arguments.requests:,} requests at {rate:.1f} per second, {arguments.load:.0%} of the most")
    for prefix_caching in (True, False):
        for fast_forward in (False, True):
            print(f"{'with' if prefix_caching else 'without'} prefix cache, {_HOW[fast_forward]}:")
            _speed(_scenario(prefix_caching), rate, arguments.requests, fast_forward)


def _scenario(prefix_caching: bool) -> Scenario:
    config = EngineConfig.from_args(
        _MODEL, max_num_seqs=256, max_num_batched_tokens=8192, enable_prefix_caching=prefix_caching
    )
    return resolve_scenario(config, find_device("h100"), find_architecture(_MODEL))


def _simulate(scenario: Scenario, rate: float, num: int, fast_forward: bool = True) -> tuple[Simulation, list[int]]:
    """A run, and the peak memory in KiB as each request finished."""
    requests = open_workload(f"synthetic:rate={rate},input=512,output=256,num={num}", random.Random(0))
    memory: list[int] = []

    def finished() -> None:
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

    simulation = Simulation(scenario, finished=finished, fast_forward=fast_forward)
    simulation.run(requests)
    return simulation, memory


def _most_per_second(scenario: Scenario) -> float:
    """Requests per second when all are there from the beginning."""
    simulation, _ = _simulate(scenario, 1e6, _FEW)
    return _FEW / (simulation.clock.now_ns / 1e9)


def _speed(scenario: Scenario, rate: float, num: int, fast_forward: bool) -> None:
    began = time.perf_counter()
    simulation, memory = _simulate(scenario, rate, num, fast_forward)
    seconds, simulated = time.perf_counter() - began, simulation.clock.now_ns / 1e9
    rows = num * 256
    print(f"  {simulated:,.1f} s simulated in {seconds:,.1f} s: {simulated / seconds:.1f} times as fast as real time")
    print(
        f"  {simulation.num_steps:,} steps of {rows / simulation.num_steps:.0f} rows: "
        f"{seconds / simulation.num_steps * 1e6:,.0f} µs a step, {seconds / rows * 1e6:.2f} µs a row"
    )
    quarters = [memory[int(share * len(memory)) - 1] / 1024 for share in (0.25, 0.5, 1.0)]
    print(f"  peak memory at a quarter, half and all: {', '.join(f'{mib:,.0f}' for mib in quarters)} MiB")


if __name__ == "__main__":
    main()
