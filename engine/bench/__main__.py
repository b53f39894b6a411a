"""`python -m engine.bench`: this engine beside its peers, in turns, as tables, and with `--docs` into `docs/`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from engine.bench.comparison import measure_ceilings, run_rounds
from engine.bench.contenders import PEERS, Contender, all_contenders
from engine.bench.documents import show, write_documents
from engine.bench.peers.protocol import Request
from engine.bench.results import Comparison, Machine
from engine.bench.tables import all_tables, failures
from engine.cli.errors import explain
from engine.errors import ConfigError, OrreryError
from engine.models.model_shape import ModelShape
from engine.models.store import resolve_model
from engine.workload.token_ids import read_token_ids

WORKLOADS = Path(__file__).with_name("workloads.json")
_MEASURED = ("dec1", "dec8", "dec32", "pre8", "mix64")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        _run(arguments)
    except OrreryError as error:
        explained = explain(error)
        print(f"bench: {explained.message}", file=sys.stderr)
        return explained.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine.bench", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="orrery-tiny, smollm2-135m or a folder")
    parser.add_argument("--rounds", type=int, default=3, help="how often all take their turn [default: 3]")
    parser.add_argument("--workloads", nargs="+", choices=_MEASURED, default=_MEASURED, help="which [default: all]")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="contenders whose name holds one of these"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="for each [default: cores]")
    parser.add_argument("--save", type=Path, default=PEERS / "results.json", help="where all samples are written")
    parser.add_argument("--docs", type=Path, help="a folder with a benchmarks.md, which is brought up to date")
    return parser


def _run(arguments: argparse.Namespace) -> None:
    folder = resolve_model(arguments.model)
    contenders = _chosen(all_contenders(arguments.model, folder, arguments.threads), arguments.only)
    requests = _workloads()
    comparison = Comparison(
        model=arguments.model,
        rounds=arguments.rounds,
        workloads=list(arguments.workloads),
        machine=Machine.this(arguments.threads),
    )
    console = Console(highlight=False)
    if not comparison.machine.quiet:
        load = comparison.machine.load_before
        Console(stderr=True).print(f"[yellow]This machine is not quiet (load {load:.1f}): the figures will be low.[/]")
    with Console(stderr=True).status("Starting …") as status:
        ceilings = partial(measure_ceilings, arguments.threads)
        for _ in run_rounds(comparison, contenders, requests, ceilings, status.update):
            comparison.save(arguments.save)  # a long run that is interrupted leaves its rounds
    tables = all_tables(comparison, ModelShape.of_folder(folder), requests)
    show(console, tables, failures(comparison))
    if arguments.docs is not None:
        write_documents(arguments.docs, comparison, tables)


def _chosen(contenders: list[Contender], names: Sequence[str]) -> list[Contender]:
    chosen = [each for each in contenders if not names or any(name.lower() in each.name.lower() for name in names)]
    if not chosen:
        raise ConfigError(
            f"No contender is named like {', '.join(names)}: {', '.join(each.name for each in contenders)}."
        )
    return chosen


def _workloads() -> dict[str, list[Request]]:
    return {
        name: [Request(request.token_ids, request.output_tokens) for request in requests]
        for name, requests in read_token_ids(WORKLOADS).items()
    }


if __name__ == "__main__":
    sys.exit(main())
