"""Summaries as tables for the terminal: the latencies of one run, and several runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from engine.metrics.distribution import Distribution
from engine.metrics.summary import MetricsSummary

#: Latencies that are shown: name, label, meaning.
_LATENCIES = (
    ("queue", "queue", "arrival until first scheduled"),
    ("ttft", "TTFT", "arrival to first token"),
    ("itl", "ITL", "from one token to the next"),
    ("tpot", "TPOT", "per token after the first"),
    ("e2el", "E2EL", "arrival to last token"),
)

_Show = Callable[[MetricsSummary], str]


def latency_table(summary: MetricsSummary) -> Table:
    """A row per latency, in milliseconds: mean, median, percentiles, standard deviation, and what it is."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    heads = ["mean", "median", *(f"p{percentage:g}" for percentage in summary.percentiles), "std"]
    for _ in heads:
        table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    table.add_row(*(Text(head, "dim") for head in ("", *heads)))
    for name, label, what in _LATENCIES:
        if values := summary.latencies_ms.get(name):
            numbers = (values.mean, values.median, *values.percentiles.values(), values.std)
            table.add_row(label, *(f"{number:,.2f}" for number in numbers), what)
    return table


def comparison(runs: Sequence[MetricsSummary]) -> Iterator[tuple[str, list[str]]]:
    """The name of each figure, and what it is for each run, `–` if it has none; figures that no run has are left out.

    Args:
        runs: all summed up with the same percentiles.
    """
    percentiles = runs[0].percentiles if runs else ()
    for label, show in _figures(percentiles):
        shown = [show(summary) for summary in runs]
        if any(shown):
            yield label, [text or "–" for text in shown]


def comparison_table(runs: Mapping[str, MetricsSummary]) -> Table:
    """A column per run, a row per figure.

    Args:
        runs: by name, all summed up with the same percentiles.
    """
    table = Table.grid(padding=(0, 3))
    table.add_column(no_wrap=True)
    for _ in runs:
        table.add_column(justify="right")
    if len(runs) > 1:
        table.add_row("", *(Text(name, "bold") for name in runs))
    for label, shown in comparison(list(runs.values())):
        table.add_row(Text(label, "dim"), *shown)
    return table


def _figures(percentiles: tuple[float, ...]) -> Iterator[tuple[str, _Show]]:
    yield "requests completed", lambda run: f"{run.completed:,}"
    yield "failed", lambda run: f"{run.failed:,}" if run.failed else ""
    yield "duration, s", lambda run: f"{run.duration:,.2f}"
    yield "requests/s", lambda run: _number(run.request_throughput)
    yield "goodput, requests/s", lambda run: _number(run.request_goodput)
    yield "output tokens/s", lambda run: _number(run.output_throughput)
    yield "total tokens/s", lambda run: _number(run.total_token_throughput)
    for name, label, _ in _LATENCIES:
        yield f"{label} median, ms", _latency(name, lambda values: values.median)
        for percentage in percentiles:
            yield f"{label} p{percentage:g}, ms", _latency(name, _percentile(percentage))
    yield "preemptions", lambda run: f"{run.num_preemptions:,}"
    yield "prefix cache hit rate", lambda run: _share(run.prefix_cache_hit_rate)
    yield "KV cache use, mean", lambda run: _share(run.mean_kv_cache_usage)
    yield "KV cache use, most", lambda run: _share(run.max_kv_cache_usage)
    yield "tokens per verification", lambda run: _number(run.mean_acceptance_length)


def _latency(name: str, pick: Callable[[Distribution], float]) -> _Show:
    return lambda run: f"{pick(run.latencies_ms[name]):,.2f}" if name in run.latencies_ms else ""


def _percentile(percentage: float) -> Callable[[Distribution], float]:
    return lambda values: values.percentiles[percentage]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
