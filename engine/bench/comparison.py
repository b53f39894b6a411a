"""Contenders in turn, round after round: of a machine that slows down for a while, all of them get their share.

One process at a time holds the machine. In each round every contender is started, makes a first token, warms up, runs
the workloads and leaves; and the ceilings are measured once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from engine.bench.contenders import Contender
from engine.bench.peers.protocol import Request
from engine.bench.process import PeerError, PeerProcess
from engine.bench.results import Comparison, ContenderResult, Samples
from engine.bench.roofline import Ceilings

Report = Callable[[str], None]

_SECONDS_TO_START = 400.0  # vLLM compiles for more than a minute, and longer on few cores
_SECONDS_PER_WORKLOAD = 300.0
_SECONDS_FOR_CEILINGS = 120.0

WARM_UP = "warm"
FIRST_TOKEN_PROMPT = "dec1"


def run_rounds(
    comparison: Comparison,
    contenders: Sequence[Contender],
    workloads: Mapping[str, Sequence[Request]],
    ceilings: Callable[[], Ceilings],
    report: Report,
) -> Iterator[int]:
    """Measure round after round; yields the number of each one when its samples are filled in.

    Args:
        comparison: says how many rounds and which workloads; is filled in as they are measured.
        contenders: who takes part.
        workloads: the requests by name, those of `WARM_UP` and `FIRST_TOKEN_PROMPT` among them.
        ceilings: measures those of the machine, once a round.
        report: told what runs.
    """
    comparison.contenders = [
        ContenderResult(
            engine=contender.engine,
            variant=contender.variant,
            bytes_per_weight=contender.bytes_per_weight,
            failure=contender.missing,
            workloads={name: Samples() for name in comparison.workloads},
        )
        for contender in contenders
    ]
    for round_number in range(1, comparison.rounds + 1):
        where = f"round {round_number} of {comparison.rounds}"
        report(f"{where}: ceilings")
        reached = ceilings()
        comparison.read_bytes_per_second.append(reached.read_bytes_per_second)
        comparison.flops_per_second.append(reached.flops_per_second)
        for contender, result in zip(contenders, comparison.contenders, strict=True):
            if result.failure is None:
                _visit(contender, result, workloads, partial(_report_step, report, f"{where}: {contender.name}"))
        yield round_number


def _visit(
    contender: Contender, result: ContenderResult, workloads: Mapping[str, Sequence[Request]], report: Report
) -> None:
    """One round of one contender. What has failed once is not tried again: it would take as long."""
    report("starting")
    try:
        process = PeerProcess(
            contender.python, contender.driver, contender.settings, contender.environment, _SECONDS_TO_START
        )
    except PeerError as error:
        result.failure = str(error)
        return
    with process:
        try:
            prompt = workloads[FIRST_TOKEN_PROMPT][0].prompt
            first = process.run([Request(prompt, 1)], _SECONDS_PER_WORKLOAD)
            process.run(workloads[WARM_UP], _SECONDS_PER_WORKLOAD)
        except PeerError as error:
            result.failure = str(error)
            return
        result.seconds_to_ready.append(process.seconds_to_ready)
        result.seconds_to_first_token.append(first.elapsed)
        for name, samples in result.workloads.items():
            if samples.failure is not None:
                continue
            report(name)
            try:
                answer = process.run(workloads[name], _SECONDS_PER_WORKLOAD)
            except PeerError as error:
                samples.failure = str(error)
                return  # it is in no state to go on; the next round takes up the rest
            samples.tokens_per_second.append(answer.tokens_per_second)
            samples.ttft.extend([] if answer.ttft is None else [answer.ttft])
            samples.itl.extend([] if answer.itl is None else [answer.itl])
        result.peak_memory_bytes.append(process.peak_memory_bytes())


def _report_step(report: Report, where: str, what: str) -> None:
    report(f"{where}, {what}")


def measure_ceilings(threads: int) -> Ceilings:
    """The ceilings, in a process of its own: the memory that it needs is free again afterwards."""
    done = subprocess.run(
        [sys.executable, "-m", "engine.bench.ceilings"],
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        check=True,
        stdout=subprocess.PIPE,
        timeout=_SECONDS_FOR_CEILINGS,
    )
    return Ceilings(**json.loads(done.stdout))
