"""What is shown: tables in Markdown, good runs and bad ones alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from scripts.accuracy.comparison import MEASURES, Accuracy, Compared, Verdict
from sim.cost_model.calibrated import TERMS

_TITLES = {
    "output_throughput": "throughput, tokens/s",
    "median_ttft": "median TTFT, ms",
    "median_itl": "median ITL, ms",
    "median_e2el": "median E2EL, ms",
    "p99_ttft": "p99 TTFT, ms",
    "p99_itl": "p99 ITL, ms",
    "p99_e2el": "p99 E2EL, ms",
}

_PREFACE = """\
# How well the simulator predicts the engine

Written by `python -m scripts.accuracy --docs docs`. The engine serves the calibration runs, before
and once more after all others, `orrery calibrate`'s fit
learns from their traces how long a step takes ([cost models](cost_model.md)), and the simulator then predicts the runs
below, of which it has seen none, with the same requests and the same configuration. Requests come at a rate, whether
or not those before them are done, and both sides count latencies from the time at which a request is due. *Load* is
that rate as a share of the requests per second that the simulator says the engine can serve.

An error is predicted / real − 1, and real the median if a run was made three times; the spread of those is (largest −
smallest) / median. The mean absolute error may be max(5 %, 1.5 × mean spread), for a 99th percentile twice the limit
of the median. Above saturation TTFT grows for as long as the run lasts, so there it is shown and not judged.
"""


def write_documents(folder: Path, accuracy: Accuracy) -> None:
    """Write `accuracy.md`, and beside it all figures as JSON."""
    (folder / "accuracy.md").write_text(document(accuracy), encoding="utf-8")
    encoded = msgspec.json.format(msgspec.json.encode(accuracy), indent=2)
    (folder / "accuracy.json").write_bytes(encoded + b"\n")


def document(accuracy: Accuracy) -> str:
    """The page."""
    tables = [f"## {_TITLES[measure]}\n\n{_measure_table(accuracy.runs, measure)}" for measure in MEASURES]
    parts = [
        _PREFACE,
        _conditions(accuracy),
        "## Verdict",
        verdict_table(accuracy.verdicts()),
        "## Runs",
        _run_table(accuracy.runs),
        "## What the calibration found",
        _device_tables(accuracy),
        *tables,
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    """Each measure over all runs."""
    rows = (
        [
            _TITLES[each.measure].partition(",")[0],
            str(each.num_runs),
            f"{each.error:.1%}",
            f"{each.spread:.1%}",
            f"{each.limit:.1%}",
            "yes" if each.is_kept else "**no**",
        ]
        for each in verdicts
    )
    return _table(["", "runs", "mean absolute error", "spread", "limit", "within"], rows)


def _conditions(accuracy: Accuracy) -> str:
    machine = accuracy.machine
    quiet = "nothing else ran to speak of" if machine.quiet else "the machine was **not quiet**"
    quick = "This is **a try**: the runs were short and none was repeated. " if accuracy.is_quick else ""
    return (
        f"{quick}{accuracy.device.model.name} on {machine.threads} threads of {machine.cpu} ({machine.capability}), "
        f"torch {machine.torch}; {quiet}, the load was {machine.load_before:.1f} when it began. All figures: "
        "[accuracy.json](accuracy.json)."
    )


def _run_table(runs: Sequence[Compared]) -> str:
    rows = (
        [
            run.name,
            f"{run.load:.0%}",
            run.workload,
            ", ".join(f"{name}={value}" for name, value in run.engine_args.items()) or "–",
            str(len(run.real)),
            _both(run.of_real("num_preemptions"), run.predicted.num_preemptions, ".0f"),
            _both(run.of_real("prefix_cache_hit_rate"), run.predicted.prefix_cache_hit_rate, ".0%"),
        ]
        for run in runs
    )
    header = ["run", "load", "workload", "engine", "times", "preemptions, real / predicted", "prefix cache hits"]
    return _table(header, rows, num_words=4)


def _measure_table(runs: Sequence[Compared], measure: str) -> str:
    rows = []
    for run in runs:
        spread = f"{run.spread(measure):.1%}" if len(run.real) > 1 else ""
        judged = "" if not (run.is_saturated and measure.endswith("ttft")) else " (saturated)"
        real, predicted = run.of_real(measure), getattr(run.predicted, measure)
        rows.append([run.name + judged, f"{real:,.1f}", f"{predicted:,.1f}", f"{run.error(measure):+.1%}", spread])
    return _table(["run", "real", "predicted", "error", "spread"], rows)


def _device_tables(accuracy: Accuracy) -> str:
    device = accuracy.device
    terms = _table(["term", "µs"], ([name, f"{device.terms_ns[name] / 1e3:,.3f}"] for name in TERMS))
    kinds = _table(
        ["steps", "number", "median, ms", "median absolute error", "mean error"],
        (
            [kind, f"{r.num_steps:,}", f"{r.median_ns / 1e6:.2f}", f"{r.median_error:.1%}", f"{r.mean_error:+.1%}"]
            for kind, r in device.residuals.items()
        ),
    )
    knee = f"`token` and `logits` count {device.knee} at least; {device.num_left_out} disturbed steps were left out."
    return f"{terms}\n\n{knee}\n\n{kinds}"


def _both(real: float, predicted: float, form: str) -> str:
    return f"{real:{form}} / {predicted:{form}}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], num_words: int = 1) -> str:
    """A table in Markdown whose first columns are words and whose others are numbers."""
    rule = ["---" if place < num_words else "---:" for place in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))
