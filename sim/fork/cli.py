"""`orrery fork`: what if, from some step of a recorded run on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from rich.text import Text
from typer import Option

from engine.errors import TraceError
from engine.trace.file import write_trace
from engine.trace.open_file import open_trace
from sim.cli import TraceFile
from sim.cost_model.calibrated import CalibratedDevice
from sim.cost_model.cost_model import CostModel
from sim.cost_model.device_file import find_device
from sim.fork.change import KNOBS, Change
from sim.fork.fork import fork_trace

_NAME = re.compile(r"r?[0-9]{1,15}")


def fork(
    trace_file: TraceFile,
    step: Annotated[int, Option(help="The first step that is planned anew.")],
    output: Annotated[Path, Option("--output", "-o", help="Where the new trace is written.")] = Path("fork.jsonl"),
    without: Annotated[list[str] | None, Option(help="Leave this request out: r3; may be repeated.")] = None,
    device: Annotated[
        str | None,
        Option(help="A file of `orrery calibrate`: steps take as long as it says, and requests come at their times."),
    ] = None,
    max_num_batched_tokens: Annotated[int | None, Option(help=KNOBS["max_num_batched_tokens"].meaning)] = None,
    max_num_seqs: Annotated[int | None, Option(help=KNOBS["max_num_seqs"].meaning)] = None,
    long_prefill_token_threshold: Annotated[
        int | None, Option(help=KNOBS["long_prefill_token_threshold"].meaning)
    ] = None,
    num_gpu_blocks: Annotated[int | None, Option(help=f"At the first step: {KNOBS['num_gpu_blocks'].meaning}")] = None,
    block_size: Annotated[int | None, Option(help=f"At the first step: {KNOBS['block_size'].meaning}")] = None,
    enable_prefix_caching: Annotated[
        bool | None, Option(help=f"At the first step: {KNOBS['enable_prefix_caching'].meaning}")
    ] = None,
    policy: Annotated[
        Literal["fcfs", "priority"] | None, Option(help=f"At the first step: {KNOBS['policy'].meaning}")
    ] = None,
    num_speculative_tokens: Annotated[
        int | None, Option(help=f"At the first step: {KNOBS['num_speculative_tokens'].meaning}")
    ] = None,
) -> None:
    """Let a recorded run go on otherwise: other limits, another pool, requests left out. The result is a trace."""
    turned: dict[str, Any] = {
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_num_seqs": max_num_seqs,
        "long_prefill_token_threshold": long_prefill_token_threshold,
        "num_gpu_blocks": num_gpu_blocks,
        "block_size": block_size,
        "enable_prefix_caching": enable_prefix_caching,
        "policy": policy,
        "num_speculative_tokens": num_speculative_tokens,
    }
    change = Change(
        step=step,
        knobs={name: value for name, value in turned.items() if value is not None},
        without=tuple(map(_serial, without or [])),
    )
    if output.exists() and output.samefile(trace_file):
        raise TraceError(f"{output} is the trace that is forked: name another file with -o.")
    trace = open_trace(trace_file)
    forked = fork_trace(trace, change, _cost_model(device))
    write_trace(output, forked.header, forked.events)
    console = Console(highlight=False)
    console.print(Text(f"{trace_file.name} {change}: {len(forked.events):,} events in {output}"))
    console.print(Text(f"orrery diff {trace_file} {output}", "dim"))


def _serial(word: str) -> int:
    if not _NAME.fullmatch(word):
        raise TraceError(f"--without takes the name of a request, such as r3, got {word[:40]!r}.")
    return int(word.removeprefix("r"))


def _cost_model(device: str | None) -> CostModel | None:
    if device is None:
        return None
    where = find_device(device)
    if not isinstance(where, CalibratedDevice):
        raise TraceError("--device takes a file of `orrery calibrate`, as it has to know the recorded model.")
    return where.model_of_time()
