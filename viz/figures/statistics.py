"""Statistics of a run over its steps: use of the KV cache, queues, prefix hits, preemptions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from engine.metrics import IterationMetrics
from sim.timeline import StepView, Timeline
from viz.cut import UNPLANNED
from viz.figures.chart import bar, chart, line, round_up
from viz.figures.html import Html, el
from viz.figures.parts import Selection, empty, label, panel

#: Points of a line; with more steps than this, each point is the highest of several.
_POINTS = 240

_Value = Callable[[IterationMetrics], float]


def statistics(timeline: Timeline, view: StepView, selection: Selection) -> Html:
    """Draw what the steps of a run say together, with the current step marked."""
    series = timeline.series
    at = next((place for place, facts in enumerate(series) if facts.step == view.step), None)
    if at is None:
        return panel("statistics", "Statistics", "the whole run, step by step", empty(UNPLANNED))
    return panel(
        "statistics",
        "Statistics",
        "the whole run, step by step; the mark is the current step",
        el(
            "div",
            "histograms",
            _over_steps(series, at, "KV cache in use", "%", lambda facts: 100 * facts.kv_cache_usage, 100),
            _over_steps(series, at, "requests running", "requests", lambda facts: facts.num_running),
            _over_steps(series, at, "requests waiting", "requests", lambda facts: facts.num_waiting),
            _over_steps(series, at, "tokens computed", "tokens", lambda facts: facts.tokens),
            _hits(series, at),
            _preemptions(series, at),
        ),
    )


def _over_steps(
    series: list[IterationMetrics], at: int, title: str, unit: str, value: _Value, top: float | None = None
) -> Html:
    return _line([value(facts) for facts in series], series, at, title, unit, top)


def _line(
    values: list[float], series: list[IterationMetrics], at: int, title: str, unit: str, top: float | None = None
) -> Html:
    highest = max(values)
    top = top or round_up(highest)
    per = -(-len(values) // _POINTS)
    shown = [max(values[i : i + per]) for i in range(0, len(values), per)]
    points = [(100 * (i + 0.5) / len(shown), 100 * value / top) for i, value in enumerate(shown)]
    if len(points) == 1:
        points = [(0.0, points[0][1]), (100.0, points[0][1])]
    now = el("span", "now", style=bar(100 * (at + 0.5) / len(values), 0.3, 0, 100))
    ends = (f"step {series[0].step}", f"step {series[-1].step}")
    ticks = [(0.0, "0"), (100.0, f"{top:,.0f}")]
    drawn = chart("", unit, ticks, ends, now, line(points, "rate"))
    sign = " %" if unit == "%" else ""
    words = f"{title}: {values[at]:,.0f}{sign} now, {highest:,.0f}{sign} at most"
    return el(
        "div", "", label(words), drawn, data_statistic=title, data_now=f"{values[at]:g}", data_most=f"{highest:g}"
    )


def _hits(series: list[IterationMetrics], at: int) -> Html:
    queried = list(accumulate(facts.queried_tokens for facts in series))
    hits = list(accumulate(facts.hit_tokens for facts in series))
    if not hits[-1]:
        why = "No admitted request began like an earlier one: nothing was found in the prefix cache."
        return el("div", "", label("prefix hit rate"), empty(why))
    rates = [100 * hit / asked if asked else 0.0 for hit, asked in zip(hits, queried, strict=True)]
    return _line(rates, series, at, "prefix hit rate so far", "%", 100)


def _preemptions(series: list[IterationMetrics], at: int) -> Html:
    so_far = list(accumulate(facts.preemptions for facts in series))
    if not so_far[-1]:
        return el("div", "", label("preemptions"), empty("Nobody lost its blocks: there was always room."))
    return _line([float(number) for number in so_far], series, at, "preemptions so far", "times")
