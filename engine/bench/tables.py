"""A comparison as tables, for the terminal and for Markdown alike."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from engine.bench.peers.protocol import Request
from engine.bench.results import Comparison, ContenderResult
from engine.bench.roofline import Ceilings, least_seconds
from engine.models.model_shape import ModelShape

OURS = "Orrery"
_NOTHING = "–"
_MS = 1e3
_MB = 1e6


class Table(NamedTuple):
    """Text in cells; the first column is set left, the others right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """As a table of GitHub's Markdown under its title."""
        lines = [self.columns, ["---"] + ["--:"] * (len(self.columns) - 1), *self.rows]
        return f"**{self.title}**\n\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def all_tables(comparison: Comparison, shape: ModelShape, requests: Mapping[str, Sequence[Request]]) -> list[Table]:
    """Every table of a comparison, in the order of reading.

    Args:
        comparison: what was measured.
        shape: of the model.
        requests: the workloads by name.
    """
    return [
        speeds(comparison),
        ratios(comparison),
        roofline_shares(comparison, shape, requests),
        latencies(comparison),
        starts(comparison),
    ]


def speeds(comparison: Comparison) -> Table:
    """Medians of the output tokens per second."""
    rows = [
        [result.name, *(_number(result.speed(name), 1) for name in comparison.workloads)]
        for result in _measured(comparison)
    ]
    return Table("Output tokens per second", ["", *comparison.workloads], rows)


def ratios(comparison: Comparison) -> Table:
    """The best of this engine divided by the best of the peers, weights of 16 and 32 bits apart from smaller ones."""
    rows = []
    for title, quantised in (("16 and 32 bits", False), ("quantised", True)):
        row = [title]
        for name in comparison.workloads:
            ours = _best(comparison, name, ours=True, quantised=quantised)
            peers = _best(comparison, name, ours=False, quantised=quantised)
            row.append(f"{ours / peers:.2f}" if ours and peers else _NOTHING)
        rows.append(row)
    return Table(f"{OURS}'s best ÷ the peers' best", ["weights", *comparison.workloads], rows)


def roofline_shares(comparison: Comparison, shape: ModelShape, requests: Mapping[str, Sequence[Request]]) -> Table:
    """Per cent of the speed that memory and cores allow; see `engine.bench.roofline`."""
    ceilings = Ceilings(
        statistics.median(comparison.read_bytes_per_second), statistics.median(comparison.flops_per_second)
    )
    rows = []
    for result in _measured(comparison):
        if result.bytes_per_weight is None:
            continue
        row = [result.name]
        for name in comparison.workloads:
            speed = result.speed(name)
            if speed is None:
                row.append(_NOTHING)
                continue
            seconds = sum(each.out for each in requests[name]) / speed
            share = least_seconds(shape, requests[name], result.bytes_per_weight, ceilings) / seconds
            row.append(f"{share:.0%}")
        rows.append(row)
    title = (
        f"Share of the roofline: memory read at {ceilings.read_bytes_per_second / 1e9:.1f} GB/s, "
        f"float32 products at {ceilings.flops_per_second / 1e9:,.0f} GFLOP/s"
    )
    return Table(title, ["", *comparison.workloads], rows)


def latencies(comparison: Comparison) -> Table:
    """Medians of mean TTFT and mean ITL."""
    rows = [
        [result.name, *(_latency(result, name) for name in comparison.workloads)] for result in _measured(comparison)
    ]
    return Table("Mean TTFT / mean ITL, ms", ["", *comparison.workloads], rows)


def starts(comparison: Comparison) -> Table:
    """How long it takes until a fresh process answers, and what it needs at most."""
    rows = []
    for result in _measured(comparison):
        first, *later = result.seconds_to_ready
        rows.append(
            [
                result.name,
                _number(first, 1),
                _number(_median(later), 1),
                _number(_median(result.seconds_to_first_token), 0, _MS),
                _number(_median(result.peak_memory_bytes), 0, 1 / _MB),
            ]
        )
    columns = ["", "ready at the first start, s", "ready later, s", "first token after that, ms", "peak memory, MB"]
    return Table("Start of a process, and its memory", columns, rows)


def failures(comparison: Comparison) -> list[str]:
    """What could not be measured, a sentence each."""
    sentences = [f"{each.name}: {each.failure}" for each in comparison.contenders if each.failure]
    for each in comparison.contenders:
        sentences += [
            f"{each.name}, {name}: {samples.failure}" for name, samples in each.workloads.items() if samples.failure
        ]
    return sentences


def spread(comparison: Comparison) -> float:
    """How far the samples of one figure lie apart, (largest - smallest) ÷ median, in the middle of all figures."""
    samples = [each.tokens_per_second for result in comparison.contenders for each in result.workloads.values()]
    apart = [(max(each) - min(each)) / statistics.median(each) for each in samples if each]
    return statistics.median(apart) if apart else 0.0


def _measured(comparison: Comparison) -> list[ContenderResult]:
    return [result for result in comparison.contenders if result.seconds_to_ready]


def _best(comparison: Comparison, workload: str, *, ours: bool, quantised: bool) -> float | None:
    rivals = (
        result
        for result in comparison.contenders
        if (result.engine == OURS) == ours and (result.bytes_per_weight is None) == quantised
    )
    reached = (result.speed(workload) for result in rivals)
    return max((speed for speed in reached if speed is not None), default=None)


def _latency(result: ContenderResult, workload: str) -> str:
    samples = result.workloads[workload]
    return f"{_number(_median(samples.ttft), 0, _MS)} / {_number(_median(samples.itl), 1, _MS)}"


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.median(known) if known else None


def _number(value: float | None, digits: int, scale: float = 1.0) -> str:
    return _NOTHING if value is None else f"{value * scale:,.{digits}f}"
