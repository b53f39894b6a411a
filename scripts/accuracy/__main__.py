"""Calibrate on some runs of the engine, predict others, and compare: `python -m scripts.accuracy --docs docs`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from engine.bench.results import Machine
from engine.cli.errors import explain
from engine.errors import OrreryError
from engine.workload import WorkloadRequest
from scripts.accuracy.comparison import Accuracy, Compared
from scripts.accuracy.documents import document, verdict_table, write_documents
from scripts.accuracy.measurement import Figures, capacity, predicted, real
from scripts.accuracy.runs import CALIBRATION, HELD_OUT, HeldOutRun, shortened
from sim.calibrate_cli import calibrate_from
from sim.cost_model.calibrated import CalibratedDevice

_REPEATS = 3
_SECONDS = 13.0
_QUICK = 0.25
"""How long the runs of a try are, as a share of real ones; none is repeated."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        with tempfile.TemporaryDirectory() as folder:
            accuracy = _measure(arguments.model, arguments.quick, arguments.keep or Path(folder))
    except OrreryError as error:
        explained = explain(error)
        print(f"accuracy: {explained.message}", file=sys.stderr)
        return explained.exit_code
    if arguments.docs is not None:
        write_documents(arguments.docs, accuracy)
    print(document(accuracy) if arguments.docs is None else verdict_table(accuracy.verdicts()))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.accuracy", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="orrery-tiny, smollm2-135m or a folder")
    parser.add_argument("--quick", action="store_true", help="short runs and no repeats: a try, not a measurement")
    parser.add_argument("--keep", type=Path, help="a folder in which the traces are left")
    parser.add_argument("--docs", type=Path, help="the folder in which accuracy.md and accuracy.json are written")
    return parser


class _Served(NamedTuple):
    """A held-out run of the engine, to be predicted."""

    run: HeldOutRun
    rate: float
    requests: list[WorkloadRequest]
    figures: list[Figures]


def _measure(model: str, is_quick: bool, folder: Path) -> Accuracy:
    """Calibrate, serve what is held out, calibrate again, predict: a machine drifts within minutes, and the fit is to
    be of the time in which the held-out runs were made."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = Machine.this(int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))))
    length = _QUICK if is_quick else 1.0
    traces: list[Path] = []
    with tqdm(total=2 * len(CALIBRATION) + len(HELD_OUT), unit="run", disable=None) as progress:

        def calibrate() -> CalibratedDevice:
            for each in CALIBRATION:
                progress.set_description(f"calibration: {each.name}")
                traces.append(folder / f"calibration-{len(traces)}.jsonl.zst")
                real(model, shortened(each, length).requests(), each.engine_args, traces[-1])
                progress.update()
            return calibrate_from(traces)

        first = calibrate()
        served = []
        for number, run in enumerate(HELD_OUT):
            progress.set_description(f"held out: {run.name}")
            times = _REPEATS if run.is_repeated and not is_quick else 1
            served.append(_serve(model, first, run, _SECONDS * length, times, folder / f"held-out-{number}"))
            progress.update()
        device = calibrate()
    return Accuracy(
        machine=machine, is_quick=is_quick, device=device, runs=[_compared(device, each) for each in served]
    )


def _serve(model: str, device: CalibratedDevice, run: HeldOutRun, seconds: float, times: int, trace: Path) -> _Served:
    rate = capacity(device, run)
    requests = run.requests(rate, seconds)
    figures = [
        Figures.of(real(model, requests, run.engine_args, trace.with_name(f"{trace.name}-{time}.jsonl.zst")))
        for time in range(times)
    ]
    return _Served(run, rate, requests, figures)


def _compared(device: CalibratedDevice, served: _Served) -> Compared:
    run = served.run
    return Compared(
        name=run.name,
        workload=f"{len(served.requests)} requests at {served.rate * run.load:.2f}/s, {run.shape}",
        engine_args=dict(run.engine_args),
        load=run.load,
        is_saturated=run.is_saturated,
        real=served.figures,
        predicted=Figures.of(predicted(device, served.requests, run.engine_args)),
    )


if __name__ == "__main__":
    sys.exit(main())
