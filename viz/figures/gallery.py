"""The gallery drawn: one card per trace, with the shape of its run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.metrics import IterationMetrics
from sim.summary import TraceSummary
from viz.figures.html import Html, el
from viz.figures.parts import count


def card(name: str, title: str, words: str, summary: TraceSummary, series: Sequence[IterationMetrics]) -> Html:
    """A trace that can be opened by a click."""
    return el(
        "button",
        "situation",
        el("h3", "", title),
        el("p", "", words),
        _shape(series),
        el("span", "numbers", _numbers(summary)),
        data_act=f"open:{name}",
        data_situation=name,
    )


def cards(drawn: Sequence[Html]) -> Html:
    """All of them."""
    return el("div", "situations", *drawn)


def _numbers(summary: TraceSummary) -> str:
    facts = [count(summary.num_requests, "request"), count(summary.num_steps, "step")]
    if summary.num_hit_tokens:
        facts.append(f"{summary.num_hit_tokens} tokens from the cache")
    if summary.num_preemptions:
        facts.append(count(summary.num_preemptions, "preemption"))
    if summary.num_evictions:
        facts.append(f"{count(summary.num_evictions, 'block')} evicted")
    return " · ".join(facts)


def _shape(series: Sequence[IterationMetrics]) -> Html:
    shown = series[:: max(1, len(series) // 90)]
    highest = max((facts.tokens for facts in shown), default=1) or 1
    bars = (
        el(
            "i",
            "hit" if facts.hit_tokens else "preemption" if facts.preemptions else "",
            style=f"height:{max(8, 100 * math.sqrt(facts.tokens / highest)):.0f}%",
        )
        for facts in shown
    )
    return el("span", "shape", *bars, aria_hidden="true")
