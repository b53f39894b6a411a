"""Where a comparison goes: the terminal, and between two marks of `docs/benchmarks.md`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from engine.bench import chart
from engine.bench.results import Comparison
from engine.bench.tables import Table, failures, spread
from engine.errors import WorkloadError

BEGIN = "<!-- comparison: written by `make bench` -->"
END = "<!-- end of comparison -->"


def show(console: Console, tables: Sequence[Table], missing: Sequence[str]) -> None:
    """Print tables, and what could not be measured."""
    for table in tables:
        console.print(table.title, markup=False, style="bold", soft_wrap=True)
        shown = RichTable(box=box.SIMPLE_HEAD)
        for number, column in enumerate(table.columns):
            shown.add_column(column, justify="right" if number else "left", no_wrap=not number)
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown)
    for sentence in missing:
        console.print(f"not measured: {sentence}", markup=False, style="dim")


def write_documents(folder: Path, comparison: Comparison, tables: Sequence[Table]) -> None:
    """Bring `benchmarks.md` up to date, with a picture beside it and all samples as JSON.

    Raises:
        WorkloadError: the document lacks the marks.
    """
    document = folder / "benchmarks.md"
    before, begin, rest = document.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise WorkloadError(f"{document} must hold the lines {BEGIN} and {END}, between which the comparison is put.")
    (folder / "images").mkdir(exist_ok=True)
    (folder / "images/benchmarks.svg").write_text(chart.draw(comparison), encoding="utf-8")
    comparison.save(folder / "benchmarks.json")
    text = "\n\n".join(
        [_conditions(comparison), _PICTURE, *(table.markdown() for table in tables), *_missing(comparison)]
    )
    document.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


_PICTURE = "![Output tokens per second of each engine on each workload](images/benchmarks.svg)"


def _conditions(comparison: Comparison) -> str:
    machine = comparison.machine
    quiet = (
        "Nothing else ran to speak of"
        if machine.quiet
        else "The machine was **not quiet**, so the figures are low and only ratios say something"
    )
    return (
        f"{comparison.model} on {machine.threads} threads of {machine.cpu} ({machine.capability}), torch "
        f"{machine.torch}, medians of {comparison.rounds} interleaved rounds, whose samples lie "
        f"{spread(comparison):.0%} apart (median). {quiet}: the load was {machine.load_before:.1f} when it began. "
        "All samples: [benchmarks.json](benchmarks.json)."
    )


def _missing(comparison: Comparison) -> list[str]:
    sentences = failures(comparison)
    return ["Not measured:\n\n" + "\n".join(f"- {sentence}" for sentence in sentences)] if sentences else []
