"""A chart: marks on a plane with two axes. Places are in percent, so that its text keeps its size at any width."""

from __future__ import annotations

import math
from collections.abc import Sequence

from viz.figures.html import Child, Html, el


def chart(x_axis: str, y_axis: str, ticks: Sequence[tuple[float, str]], ends: tuple[str, str], *marks: Child) -> Html:
    """Marks on a plane.

    Args:
        x_axis, y_axis: what the axes show, with the unit.
        ticks: of the y axis: height in percent, and what it says.
        ends: what the x axis says at its left and right end.
        marks: placed by `at`, `bar` or `line`.
    """
    lines = [el("span", "tick", el("em", "", text), style=f"bottom:{height:.2f}%") for height, text in ticks]
    below = el("div", "ends", el("span", "", ends[0]), el("span", "", x_axis), el("span", "", ends[1]))
    return el("div", "chart", el("p", "axis", y_axis), el("div", "plane", *lines, *marks), below)


def line(points: Sequence[tuple[float, float]], css: str = "", **attributes: str | int | None) -> Html:
    """A line through points, in percent from the lower left."""
    path = " ".join(f"{x:.2f},{100 - y:.2f}" for x, y in points)
    drawn = el("polyline", "", points=path, vector_effect="non-scaling-stroke")
    return el("svg", f"line {css}", drawn, viewBox="0 0 100 100", preserveAspectRatio="none", **attributes)


def at(x: float, y: float) -> str:
    """The style of a mark whose middle is at a place, in percent from the lower left."""
    return f"left:{x:.2f}%;bottom:{y:.2f}%"


def bar(x: float, width: float, bottom: float, height: float) -> str:
    """The style of a bar, in percent of the plane."""
    return f"left:{x:.3f}%;width:{width:.3f}%;bottom:{bottom:.3f}%;height:{height:.3f}%"


def round_up(value: float) -> float:
    """The next number of the form 1, 2 or 5 times a power of ten: where an axis may end."""
    if value <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def duration(nanoseconds: float) -> str:
    """`850 µs`, `3.2 ms`, `1.50 s`."""
    if nanoseconds < 1e6:
        return f"{nanoseconds / 1e3:.0f} µs"
    return f"{nanoseconds / 1e6:.1f} ms" if nanoseconds < 1e9 else f"{nanoseconds / 1e9:.2f} s"
