"""Microseconds that the control plane takes for a step, with no model behind it.

`python -m engine.bench.control_plane` prints them, how they grow with the rows of a step, and that they do not grow
with the requests that have finished. With `--peer PYTHON`, a Python that has vLLM, its scheduler takes turns with ours
on the same workloads.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Self

from rich.console import Console
from rich.table import Table

from engine.config import EngineConfig, KVCacheConfig, KVCacheGroup
from engine.core.engine_core import EngineCore
from engine.core.kv_cache.block_hash import none_hash_for
from engine.core.messages import EngineCoreRequest, ModelRunnerOutput, SchedulerOutput
from engine.sampling_params import SamplingParams

BLOCK_SIZE = 16
TOKEN = 7
PEER = Path(__file__).with_name("vllm_control_plane.py")


class Workload(NamedTuple):
    """Requests that share no prefix and all wait at the first step; prefix caching is on, the pool never short."""

    num_requests: int
    prompt_tokens: int
    token_budget: int
    num_decode_steps: int
    """Steps measured once all prompts are computed; 0: those that compute the prompts are measured instead."""
    output_room: int = 1024
    """Tokens that a request may have beyond its prompt."""


def decodes(num_requests: int, num_steps: int = 320) -> Workload:
    """So many running decodes; the steps are a multiple of the block size, so every row begins as many blocks."""
    return Workload(num_requests, 128, 1 << 20, num_steps)


WORKLOADS = {
    "32 decodes": decodes(32),
    "256 decodes": decodes(256),
    "64 × 4,096 prefill": Workload(64, 4096, 2048, 0),
}


class Sample(NamedTuple):
    """Microseconds, by the wall clock and of the thread: on a busy machine only the latter is the work itself."""

    wall: list[float]
    """Of every measured step."""
    thread: list[float]
    added: tuple[float, float]
    """Of adding one request."""

    @property
    def figures(self) -> tuple[float, float, float, float]:
        """Of a step: the thread's median and mean, the wall clock's median; and the thread's for adding a request."""
        return (
            statistics.median(self.thread),
            statistics.mean(self.thread),
            statistics.median(self.wall),
            self.added[1],
        )


class Bench:
    """A core, and a fixed token in place of a model."""

    def __init__(self, workload: Workload) -> None:
        max_model_len = workload.prompt_tokens + workload.output_room
        config = EngineConfig.from_args(
            "no-model",
            block_size=BLOCK_SIZE,
            max_num_batched_tokens=workload.token_budget,
            max_num_seqs=workload.num_requests,
        )
        kv_cache = KVCacheConfig(
            num_gpu_blocks=workload.num_requests * -(-max_model_len // BLOCK_SIZE) + 1,
            block_size=BLOCK_SIZE,
            groups=(KVCacheGroup(num_layers=1, block_bytes=1),),
            none_hash=none_hash_for("sha256"),
        )
        self.core = EngineCore(config, kv_cache, max_model_len)
        self.unfinished_prompts: set[int] = set()
        self._num_added = 0

    def add(self, prompt_tokens: int, max_tokens: int | None = None) -> None:
        """Let a request join; no two share a prefix."""
        first = self._num_added * prompt_tokens
        request = EngineCoreRequest(
            request_id=str(self._num_added),
            prompt_token_ids=tuple(range(first, first + prompt_tokens)),
            sampling_params=SamplingParams(max_tokens=max_tokens, seed=0, ignore_eos=True),
        )
        self._num_added += 1
        self.unfinished_prompts.add(self.core.add(request))

    def step(self) -> tuple[float, float]:
        """Schedule and update once. Returns seconds by the wall clock, and of this thread."""
        wall, thread = time.perf_counter(), time.thread_time()
        plan = self.core.schedule()
        planned_wall, planned_thread = time.perf_counter() - wall, time.thread_time() - thread
        output = self._forward(plan)
        wall, thread = time.perf_counter(), time.thread_time()
        self.core.update(plan.step, output)
        return planned_wall + time.perf_counter() - wall, planned_thread + time.thread_time() - thread

    def compute_prompts(self) -> list[tuple[float, float]]:
        """Step until every prompt is computed; returns what each step took."""
        steps = []
        while self.unfinished_prompts:
            steps.append(self.step())
        return steps

    def _forward(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        requests = self.core.requests
        done = [row.num_tokens_after >= requests[row.request_id].num_tokens for row in plan.rows]
        self.unfinished_prompts.difference_update(
            row.serial for row, complete in zip(plan.rows, done, strict=True) if complete
        )
        return ModelRunnerOutput(
            step=plan.step,
            serials=[row.serial for row in plan.rows],
            sampled_token_ids=[[TOKEN] if complete else [] for complete in done],
        )


def measure(workload: Workload, num_finished_before: int = 0) -> Sample:
    """Measure a workload, on a core that has served so many requests already."""
    bench = Bench(workload)
    for _ in range(num_finished_before):
        bench.add(prompt_tokens=BLOCK_SIZE, max_tokens=1)
    bench.compute_prompts()
    wall, thread = time.perf_counter(), time.thread_time()
    for _ in range(workload.num_requests):
        bench.add(workload.prompt_tokens)
    added = (time.perf_counter() - wall, time.thread_time() - thread)
    # Both engines keep what lives since their start out of the collector's way.
    gc.collect()
    gc.freeze()
    prompts = bench.compute_prompts()
    steps = [bench.step() for _ in range(workload.num_decode_steps)] or prompts
    gc.unfreeze()
    return Sample(
        wall=[wall * 1e6 for wall, _ in steps],
        thread=[thread * 1e6 for _, thread in steps],
        added=(added[0] * 1e6 / workload.num_requests, added[1] * 1e6 / workload.num_requests),
    )


class Peer:
    """vLLM's scheduler in a Python of its own, which answers one workload after the other."""

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen([python, str(PEER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measure(self, workload: Workload) -> Sample:
        """Measure a workload there.

        Raises:
            RuntimeError: that Python has ended without an answer; it has said why.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(workload._asdict()) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{PEER.name} ended with exit code {self._process.wait()}")
        return Sample(**json.loads(answer))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def microseconds_per_step(num_decodes: int) -> float:
    """Median of `schedule()` + `update()` with so many running decodes."""
    return measure(decodes(num_decodes)).figures[2]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", metavar="PYTHON", help="a Python that has vLLM")
    parser.add_argument("--rounds", type=int, default=5, help="times that every workload is measured (5)")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    console.print(
        f"µs of the thread's CPU time for schedule() + update(): median and mean over the steps, then the median over "
        f"{arguments.rounds} interleaved rounds; wall: median by the wall clock; add: for a request to join; "
        "ratio: ours / theirs, round by round.\n"
    )
    if arguments.peer is None:
        console.print(_workloads({"engine": measure}, arguments.rounds))
    else:
        with Peer(arguments.peer) as peer:
            console.print(_workloads({"engine": measure, "vLLM": peer.measure}, arguments.rounds))
    console.print(_growth("decodes", (16, 32, 64, 128, 256, 512), arguments.rounds, lambda n: measure(decodes(n))))
    before = "requests finished before 64 decodes"
    console.print(_growth(before, (0, 1000, 10000), arguments.rounds, lambda n: measure(decodes(64), n)))


def _workloads(engines: dict[str, Callable[[Workload], Sample]], rounds: int) -> Table:
    names = ("median", "mean", "wall", "add")
    table = Table("workload", "engine", *names, "ratio: median", "mean", box=None, padding=(0, 1))
    for name, workload in WORKLOADS.items():
        figures = [[sample(workload).figures for sample in engines.values()] for _ in range(rounds)]
        for place, engine in enumerate(engines):
            own = [per_round[place] for per_round in figures]
            ratios = [[ours / theirs for ours, theirs in zip(one[0], one[place], strict=True)] for one in figures]
            shown = [f"{ratio:.2f}" for ratio in _medians(ratios)[:2]] if place else []
            table.add_row(name, engine, *(f"{figure:,.0f}" for figure in _medians(own)), *shown)
    return table


def _growth(title: str, sizes: Iterable[int], rounds: int, sample: Callable[[int], Sample]) -> Table:
    print()
    table = Table(title, "median", "mean", "mean a row", box=None, padding=(0, 1))
    for size in sizes:
        median, mean, *_ = _medians([sample(size).figures for _ in range(rounds)])
        rows = size if title == "decodes" else 64
        table.add_row(f"{size:,}", f"{median:,.0f}", f"{mean:,.0f}", f"{mean / rows:.2f}")
    return table


def _medians(rows: Iterable[Iterable[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*rows, strict=True)]


if __name__ == "__main__":
    main()
