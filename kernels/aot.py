"""Compile every kernel for GPUs that are not at hand, and see what it takes of each: `python -m kernels.aot`.

Triton and the assemblers that come with it need no device. What a compiled kernel says of itself is worth reading
before it runs anywhere: how many registers a thread holds and how much shared memory a program (together they limit
how many programs share a processor), what had to be spilled to memory, and how much arithmetic there is per byte.

The table in `docs/kernels.md` is written with `--write`; `--check` compiles everything and complains of kernels that
are not in it, or, with the Triton that it is of, spill more than it says.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import multiprocessing
import os
import pkgutil
import re
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

import kernels
from kernels.specimen import Specimen

#: Name in the table → backend, architecture, threads of a warp.
TARGETS: dict[str, tuple[str, int | str, int]] = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}

DOCUMENT = Path(__file__).parents[1] / "docs" / "kernels.md"

_BEGIN, _END = "<!-- table: written by `python -m kernels.aot --write` -->", "<!-- end of the table -->"


class Usage(NamedTuple):
    """What one kernel takes of one target."""

    registers: int
    """Vector registers of 32 bits per thread."""
    shared_bytes: int
    """Shared memory per program; LDS, as AMD calls it."""
    spilled_bytes: int
    """Stored to memory per thread for want of registers."""


class Row(NamedTuple):
    """A kernel's line in the table."""

    name: str
    flops_per_byte: float
    usages: dict[str, Usage]
    """By the name of the target."""


def all_specimens() -> list[Specimen]:
    """The specimens of all files here, in the order of their names.

    Raises:
        ValueError: two specimens have one name.
    """
    found: dict[str, Specimen] = {}
    for module in pkgutil.walk_packages(kernels.__path__, "kernels."):
        specimens = getattr(importlib.import_module(module.name), "specimens", None)
        for specimen in specimens() if specimens else ():
            if specimen.name in found:
                raise ValueError(f"two specimens are named {specimen.name}.")
            found[specimen.name] = specimen
    return [found[name] for name in sorted(found)]


def compile_specimen(specimen: Specimen, target: str) -> Usage:
    """Compile one kernel for one target, down to its machine code."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    fn = getattr(specimen.fn, "jitted", specimen.fn)
    types = {name: specimen.signature.get(name, "constexpr") for name in fn.arg_names}
    if missing := [name for name, type_ in types.items() if type_ == "constexpr" and name not in specimen.constexprs]:
        raise ValueError(f"{specimen.name} says nothing of {', '.join(missing)}.")
    aligned = {
        (at,): [["tt.divisibility", 16]]
        for at, type_ in enumerate(types.values())
        if type_.startswith("*") or type_.endswith(":16")
    }
    signature = {name: type_.removesuffix(":16") for name, type_ in types.items()}
    source = ASTSource(fn=fn, signature=signature, constexprs=dict(specimen.constexprs), attrs=aligned)
    options = {"num_warps": specimen.num_warps, "num_stages": specimen.num_stages, "enable_fp_fusion": True}
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        compiled = triton.compile(source, target=GPUTarget(*TARGETS[target]), options=options)
    shared = compiled.metadata.shared
    return _amd_usage(compiled.asm["amdgcn"], shared) if target == "gfx942" else _nvidia_usage(log.getvalue(), shared)


def _nvidia_usage(log: str, shared: int) -> Usage:
    """From what ptxas says when it is asked to be verbose."""
    return Usage(_number(r"Used (\d+) registers", log), shared, _number(r"(\d+) bytes spill stores", log))


def _amd_usage(assembly: str, shared: int) -> Usage:
    """From the metadata at the end of the assembly."""
    return Usage(
        _number(r"\.vgpr_count:\s*(\d+)", assembly), shared, 4 * _number(r"\.vgpr_spill_count:\s*(\d+)", assembly)
    )


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"the compiler's output does not say {pattern!r}: {text[-500:]}")
    return int(found[1])


def measure(processes: int) -> list[Row]:
    """Compile everything for every target."""
    specimens = all_specimens()
    tasks = [(at, target) for at in range(len(specimens)) for target in TARGETS]
    # A compilation that is found in Triton's cache would not run the assembler, and so leave no log.
    with tempfile.TemporaryDirectory() as cache:
        pool = ProcessPoolExecutor(
            processes, multiprocessing.get_context("fork"), initializer=_start_worker, initargs=(cache, specimens)
        )
        with pool:
            usages = list(tqdm(pool.map(_compile_task, tasks), "compiling", len(tasks), disable=None))
    by_task = dict(zip(tasks, usages, strict=True))
    return [
        Row(each.name, each.flops / each.bytes, {target: by_task[at, target] for target in TARGETS})
        for at, each in enumerate(specimens)
    ]


_worker_specimens: list[Specimen] = []


def _start_worker(cache: str, specimens: list[Specimen]) -> None:
    import triton

    triton.knobs.cache.dir = cache
    triton.knobs.nvidia.dump_ptxas_log = True
    _worker_specimens.extend(specimens)


def _compile_task(task: tuple[int, str]) -> Usage:
    return compile_specimen(_worker_specimens[task[0]], task[1])


def table(rows: Iterable[Row]) -> str:
    """Markdown; `parse_table` reads it back."""
    lines = [
        f"Compiled by {_compiler()}.",
        "",
        f"| kernel | flops per byte | {' | '.join(TARGETS)} |",
        f"| --- | ---: | {' | '.join('---:' for _ in TARGETS)} |",
    ]
    for row in rows:
        cells = (" / ".join(map(str, row.usages[target])) for target in TARGETS)
        lines.append(f"| `{row.name}` | {row.flops_per_byte:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _compiler() -> str:
    import triton

    return f"Triton {triton.__version__}"


def parse_table(document: str) -> dict[str, dict[str, Usage]]:
    """By kernel and target, what the table in a document says."""
    committed = {}
    for line in document.partition(_BEGIN)[2].partition(_END)[0].splitlines():
        name, *cells = (cell.strip(" `") for cell in line.strip("|").split("|"))
        if cells and " / " in cells[-1]:
            usages = (Usage(*map(int, cell.split(" / "))) for cell in cells[1:])
            committed[name] = dict(zip(TARGETS, usages, strict=True))
    return committed


def with_table(document: str, rows: Iterable[Row]) -> str:
    """The document with this table in place of the one it has."""
    before, _, rest = document.partition(_BEGIN)
    return f"{before}{_BEGIN}\n{table(rows)}\n{_END}{rest.partition(_END)[2]}"


def unlisted(rows: Iterable[Row], committed: dict[str, dict[str, Usage]]) -> list[str]:
    """Kernels and table must name each other."""
    compiled = {row.name: row for row in rows}
    return [f"{name} is not in the table." for name in compiled if name not in committed] + [
        f"{name} is in the table, but not among the kernels." for name in committed if name not in compiled
    ]


def spills_beyond(rows: Iterable[Row], committed: dict[str, dict[str, Usage]]) -> list[str]:
    """The kernels that spill more than the committed table says."""
    return [
        f"{row.name} spills {usage.spilled_bytes} bytes on {target}, the table says {allowed.spilled_bytes}."
        for row in rows
        for target, usage in row.usages.items()
        if (allowed := committed.get(row.name, row.usages)[target]).spilled_bytes < usage.spilled_bytes
    ]


def check(rows: list[Row], document: str) -> list[str]:
    """What is wrong with the kernels, going by a document's table. Another Triton allots other registers than the one
    that the table is of: then only the names are compared."""
    committed = parse_table(document)
    if _compiler() not in document:
        print(f"The table is of another compiler than {_compiler()}: spills are not compared.")
        return unlisted(rows, committed)
    return unlisted(rows, committed) + spills_beyond(rows, committed)


def main() -> int:
    """Compile, and print, write or check the table."""
    parser = argparse.ArgumentParser(prog="python -m kernels.aot", description="Compile every kernel for every target.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="put the table into docs/kernels.md")
    what.add_argument("--check", action="store_true", help="fail if a kernel spills more than docs/kernels.md says")
    parser.add_argument("--processes", type=int, default=2, help="compilations at a time")
    options = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        print("TRITON_INTERPRET must not be set: interpreted kernels cannot be compiled.", file=sys.stderr)
        return 2
    rows = measure(options.processes)
    document = DOCUMENT.read_text(encoding="utf-8")
    found = check(rows, document) if options.check else []
    if options.write:
        DOCUMENT.write_text(with_table(document, rows), encoding="utf-8")
    print("\n".join(found) if options.check else table(rows))
    print(f"{len(rows)} kernels compiled for {', '.join(TARGETS)}, {len(found)} complaints")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
