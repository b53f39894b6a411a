"""Latency and throughput of a run: how long its requests waited, and how many tokens came out per second."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from engine.metrics import RequestMetrics
from sim.timeline import StepView, Timeline
from viz.figures.chart import bar, chart, duration, line, round_up
from viz.figures.html import Html, el
from viz.figures.parts import Selection, count, empty, label, panel

_BINS = 16
#: Points of the line over time.
_POINTS = 120

_MEASURES = (
    ("ttft", "time to first token (TTFT)", "from arrival to the first token"),
    ("itl", "inter-token latency (ITL)", "from one token to the next"),
    ("e2el", "end-to-end latency (E2E)", "from arrival to the last token"),
)


def latency(timeline: Timeline, view: StepView, selection: Selection) -> Html:
    """Draw the distributions of the run, and its throughput with the current step marked."""
    return panel(
        "latency",
        "Latency and throughput",
        "how long requests waited for their tokens, as recorded",
        el("div", "histograms", *_distributions(timeline)),
        label("throughput: output tokens per second"),
        _throughput(timeline, view.step),
    )


@lru_cache(maxsize=8)
def _distributions(timeline: Timeline) -> tuple[Html, ...]:
    """They are the same at every step, and there may be a million values."""
    requests = timeline.summary().metrics.requests
    return tuple(_distribution(name, title, words, values_of(requests, name)) for name, title, words in _MEASURES)


def values_of(requests: Sequence[RequestMetrics], name: str) -> list[float]:
    """All values of `ttft`, `itl` or `e2el` in nanoseconds, of the requests that have one."""
    if name == "itl":
        return [value for request in requests for value in request.itls_ns]
    measured = [request.ttft_ns if name == "ttft" else request.e2el_ns for request in requests]
    return [value for value in measured if value is not None]


def _distribution(name: str, title: str, words: str, values: list[float]) -> Html:
    if not values:
        return el("div", "", label(title), empty(f"No request has got so far: it is measured {words}."))
    top = max(values)
    counts = [0] * _BINS
    for value in values:
        counts[min(_BINS - 1, int(value / top * _BINS) if top else 0)] += 1
    width = 100 / _BINS
    most = max(counts)
    bars = [
        el(
            "i", "bar", style=bar(i * width + 0.4, width - 0.8, 0, 100 * n / most), data_bin=n,
            data_tip=f"{duration(i * top / _BINS)} to {duration((i + 1) * top / _BINS)}: {n}",
        )
        for i, n in enumerate(counts)
        if n
    ]  # fmt: skip
    middle = sorted(values)[len(values) // 2]
    ends = ("0", duration(top))
    return el(
        "div", "", label(title), chart("", "how often", [(100.0, f"{most}")], ends, *bars),
        el("p", "more", f"{count(len(values), 'value')}, median {duration(middle)}"),
        data_measure=name, data_values=len(values),
    )  # fmt: skip


def _throughput(timeline: Timeline, step: int) -> Html:
    series = timeline.series
    if not series:
        return empty("No step of this trace was planned to its end.")
    start, end = series[0].started_ns, max(facts.ended_ns for facts in series)
    if end <= start:
        return empty("The trace is too short to speak of a rate.")
    buckets = min(_POINTS, max(4, len(series) // 2))
    span = (end - start) / buckets
    tokens = [0] * buckets
    for facts in series:
        tokens[min(buckets - 1, int((facts.ended_ns - start) / span))] += facts.output_tokens
    rates = [number / span * 1e9 for number in tokens]
    top = round_up(max(rates))
    points = [(100 * (i + 0.5) / buckets, 100 * rate / top) for i, rate in enumerate(rates)]
    # A step that the end of the trace cut short has no place in the series, and so no mark.
    ended = next((facts.ended_ns for facts in series if facts.step == step), None)
    place = None if ended is None else 100 * (ended - start) / (end - start)
    now = None if place is None else el("span", "now", style=bar(place, 0.3, 0, 100), data_now=step)
    ticks = [(0.0, "0"), (50.0, f"{top / 2:,.0f}"), (100.0, f"{top:,.0f}")]
    return chart(
        "time", "tokens/s", ticks, ("start", duration(end - start)), now,
        line(points, "rate", data_tokens_drawn=sum(tokens)),
    )  # fmt: skip
