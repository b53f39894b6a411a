"""`orrery replay` and `orrery check`: the two questions one can ask a trace without a model."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from engine.errors import OrreryError
from engine.trace.events import EventClass, tag_of
from engine.trace.open_file import open_trace
from sim.event_table import two_events

if TYPE_CHECKING:
    from engine.core.seams import GrammarBackend
    from engine.trace.file import AnyTrace
    from sim.replay import Divergence

#: Imports torch and xgrammar, which the simulator does without: named here, and imported only if a trace asks for it.
_GRAMMAR_BACKEND = "engine.guided.recompute:recomputing_backend"

TraceFile = Annotated[Path, typer.Argument(metavar="TRACE", help="A trace file, .jsonl or .jsonl.zst.")]


def replay(trace_file: TraceFile) -> None:
    """Run a trace's inputs again and compare every decision."""
    from sim.replay import replay as run_replay

    console = Console(highlight=False, soft_wrap=True)
    started = time.perf_counter()
    trace = open_trace(trace_file)
    grammar_backend, why_trusted = _grammar_backend(trace)
    report = run_replay(trace, grammar_backend)
    seconds = time.perf_counter() - started
    if report.truncated:
        console.print(Text(report.truncated, "yellow"))
    console.print(
        Text(f"{trace_file.name}: {report.num_steps} steps, {report.num_inputs} inputs, replayed in {seconds:.2f} s")
    )
    if report.num_recomputed:
        console.print(Text(f"{report.num_recomputed} derived events were recomputed and agree"))
    elif report.num_trusted:
        console.print(Text(f"{report.num_trusted} derived events are trusted: {why_trusted}", "yellow"))
    if report.divergence is not None:
        _show_divergence(console, report.divergence)
    console.print(Text(str(report), "bold red" if report.divergence else "bold green"))
    raise typer.Exit(report.num_divergences)


def check(
    trace_file: TraceFile,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say what each invariant states.")] = False,
) -> None:
    """Check the invariants that every trace must keep."""
    from sim.invariants import check as run_check
    from sim.invariants import render

    trace = open_trace(trace_file)
    report = run_check(trace)
    console = Console(highlight=False)
    if trace.truncated:
        console.print(Text(trace.truncated, "yellow"))
    console.print(render(report, verbose=verbose))
    raise typer.Exit(int(bool(report.violations)))


def _grammar_backend(trace: AnyTrace) -> tuple[GrammarBackend | None, str]:
    """What recomputes the derived events of a trace, if it has any; else None, and why there is nothing."""
    if not any(kind.kind is EventClass.DERIVED and kind.needs_backend for kind in trace.types):
        return None, ""
    module, _, function = _GRAMMAR_BACKEND.partition(":")
    try:
        return getattr(importlib.import_module(module), function)(trace.header), ""
    except ImportError as error:
        return None, f"{error.name or error} is not installed"
    except OrreryError as error:
        return None, str(error)


def _show_divergence(console: Console, divergence: Divergence) -> None:
    """What was recorded, what was recomputed, and the core around it."""
    event = divergence.recorded or divergence.recomputed
    where = f"event {divergence.recorded.seq}, " if divergence.recorded else ""
    tag = tag_of(event) if event else ""
    console.print(Text(f"\nFirst divergence: {where}{tag} in step {divergence.step}: {divergence.why}.\n", "bold"))
    console.print(two_events(("recorded", divergence.recorded), ("recomputed", divergence.recomputed)))
    console.print(Text(f"\nThe core then: {', '.join(f'{k} {v}' for k, v in divergence.state.items())}\n", "dim"))
