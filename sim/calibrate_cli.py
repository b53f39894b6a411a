"""`orrery calibrate`: from recorded runs to a device that the simulator can run on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from engine.errors import TraceError
from engine.trace.events import Header
from engine.trace.open_file import open_trace
from sim.cost_model.calibrated import TERMS, CalibratedDevice, fit
from sim.cost_model.device_file import write_device
from sim.cost_model.recorded_steps import RecordedStep, recorded_steps

_UNITS = {
    "step": "step",
    "single": "step of one token",
    "request": "request",
    "token": "token of several",
    "logits": "row of logits of several",
    "decode_pair": "key a decode sees",
    "prefill_pair": "query-key pair of prompts",
}


def calibrate(
    traces: Annotated[list[Path], Argument(metavar="TRACE…", help="Recorded runs of one model on one machine.")],
    output: Annotated[Path, Option("--output", "-o", help="Where the device is written, as JSON.")] = Path(
        "device.json"
    ),
) -> None:
    """Learn from recorded runs how long a step takes, by what is in it."""
    device = calibrate_from(traces)
    write_device(device, output)
    Console(highlight=False).print(_table(device))
    Console(highlight=False).print(_fit_table(device))
    Console(highlight=False).print(
        Text(f"{device.num_left_out} disturbed steps were left out. Written to {output}.", "dim")
    )


def calibrate_from(traces: list[Path]) -> CalibratedDevice:
    """Fit the steps of all traces.

    Raises:
        TraceError: a trace cannot be read, is of another model or device than the first, of a simulation or of an
            asynchronous run, or they hold too few steps.
    """
    headers: list[Header] = []
    steps: list[RecordedStep] = []
    for path in traces:
        trace = open_trace(path)
        _require_comparable(path, trace.header, headers)
        headers.append(trace.header)
        steps += recorded_steps(trace.events)
    first = headers[0]
    names = [path.name for path in traces]
    return fit(steps, name=first.device, model=first.model, kv_cache=first.kv_cache, traces=names)


def _require_comparable(path: Path, header: Header, before: list[Header]) -> None:
    if header.config.scheduler.async_scheduling:
        raise TraceError(f"{path} is of an asynchronous run: its steps overlap, so none has a time of its own.")
    if header.device.startswith("simulated"):
        raise TraceError(f"{path} is of a simulation: there is nothing to be learned of a machine.")
    if before and (header.model.name, header.device) != (before[0].model.name, before[0].device):
        raise TraceError(
            f"{path} is of {header.model.name} on {header.device}, "
            f"the first trace of {before[0].model.name} on {before[0].device}."
        )


def _table(device: CalibratedDevice) -> Table:
    table = Table(box=None, padding=(0, 2), title=f"{device.model.name} on {device.name}", title_justify="left")
    table.add_column("term")
    table.add_column("µs", justify="right")
    table.add_column("per", style="dim")
    for name in TERMS:
        at_least = f", of {device.knee} at least" if name in ("token", "logits") else ""
        table.add_row(name, f"{device.terms_ns[name] / 1e3:,.3f}", f"{_UNITS[name]}{at_least}")
    return table


def _fit_table(device: CalibratedDevice) -> Table:
    table = Table(box=None, padding=(0, 2))
    for column in ("steps", "number", "median, ms", "median |error|", "mean error"):
        table.add_column(column, justify="left" if column == "steps" else "right")
    for phase, residual in device.residuals.items():
        table.add_row(
            phase,
            f"{residual.num_steps:,}",
            f"{residual.median_ns / 1e6:.2f}",
            f"{residual.median_error:.1%}",
            f"{residual.mean_error:+.1%}",
        )
    return table
