"""`python -m engine.bench [MODEL]`: the benchmarks of this folder as one table."""

from __future__ import annotations

import sys

import torch
from rich.console import Console
from rich.table import Table

from engine.bench.control_plane import microseconds_per_step
from engine.bench.throughput import compare
from engine.cli.errors import explain
from engine.errors import OrreryError

ROUNDS = 3


def main(model: str = "smollm2-135m") -> int:
    """Measure and print."""
    console = Console(highlight=False)
    progress = Console(stderr=True)
    console.print(
        f"{model}, float32, {torch.get_num_threads()} threads, greedy, medians of {ROUNDS} interleaved rounds\n"
    )
    try:
        with progress.status("Loading …") as status:
            comparisons = compare(model, ROUNDS, status.update)
    except OrreryError as error:
        explained = explain(error)
        print(f"bench: {explained.message}", file=sys.stderr)
        return explained.exit_code
    table = Table(box=None, padding=(0, 2))
    for column in ("workload", "batch", "in", "out", "engine tok/s", "transformers tok/s", "ratio"):
        table.add_column(column, justify="left" if column == "workload" else "right")
    for comparison in comparisons:
        workload = comparison.workload
        table.add_row(
            workload.name,
            *map(str, workload[1:]),
            f"{comparison.engine:.1f}",
            f"{comparison.transformers:.1f}",
            f"{comparison.ratio:.2f}",
        )
    console.print(table)
    for num_decodes in (32, 256):
        console.print(
            f"\ncontrol plane, {num_decodes} decodes: {microseconds_per_step(num_decodes):.0f} µs a step", end=""
        )
    console.print()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
