"""The curves of a target's heads as one picture: `python -m scripts.train_heads.curve smollm2-135m OUT.svg`.

Those of the heads that the documentation speaks of are in `results/`, with what was measured of them.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from html import escape
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
#: Okabe and Ito, "Color Universal Design" (2008).
_COLOURS = {"eagle": "#0072B2", "medusa": "#E69F00"}
_INK, _FAINT, _PAPER = "#14171C", "#C9CED6", "#FFFFFF"
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 300, 180, 44, 56, 64

Points = list[tuple[float, float]]


def read_curve(path: Path, column: str) -> Points:
    """(step, value) of the lines that have one."""
    with path.open(newline="") as file:
        return [(float(line["step"]), float(line[column])) for line in csv.DictReader(file) if line[column]]


def draw(name: str, work: Path) -> str:
    """The losses of both kinds of heads, and the mean acceptance length on held-out answers, as an SVG file."""
    columns = (
        ("loss", "loss, relative to the first"),
        ("mean_acceptance_length", "tokens a step, on held-out answers"),
    )
    width, height = _LEFT * 2 + 2 * _WIDTH + _GAP, _TOP + _HEIGHT + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="Training of {escape(name)}\'s heads" font-family="system-ui, sans-serif" '
        f'font-size="12" fill="{_INK}">',
        f'<rect width="{width}" height="{height}" fill="{_PAPER}"/>',
        f'<text x="{_LEFT}" y="22" font-size="15" font-weight="600">Training of the heads of {escape(name)}</text>',
    ]
    for number, (kind, colour) in enumerate(_COLOURS.items()):
        parts.append(f'<text x="{width - _LEFT - 120 + 64 * number}" y="22" fill="{colour}">{kind}</text>')
    for number, (column, title) in enumerate(columns):
        curves = {kind: read_curve(work / f"{kind}.csv", column) for kind in _COLOURS}
        if column == "loss":
            curves = {kind: [(step, loss / points[0][1]) for step, loss in points] for kind, points in curves.items()}
        parts += _panel(_LEFT + number * (_WIDTH + _GAP), title, curves)
    return "\n".join([*parts, "</svg>", ""])


def _panel(left: int, title: str, curves: dict[str, Points]) -> list[str]:
    """One diagram; its x axis is the share of the training that is done, since the kinds take different steps."""
    values = [value for points in curves.values() for _, value in points]
    low, high = min(values), max(values)

    def y(value: float) -> float:
        return _TOP + _HEIGHT - _HEIGHT * (value - low) / ((high - low) or 1.0)

    parts = [f'<text x="{left}" y="{_TOP - 12}" font-weight="600">{escape(title)}</text>']
    for value in (low, (low + high) / 2, high):
        parts.append(f'<path d="M{left} {y(value):.1f}h{_WIDTH}" stroke="{_FAINT}"/>')
        parts.append(f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>')
    for share in (0, 50, 100):
        x = left + _WIDTH * share // 100
        parts.append(f'<text x="{x}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{share} %</text>')
    parts += [_line(points, lambda x: left + _WIDTH * x, y, _COLOURS[kind]) for kind, points in curves.items()]
    return parts


def _line(points: Points, x: Callable[[float], float], y: Callable[[float], float], colour: str) -> str:
    last = points[-1][0]
    corners = " ".join(f"{x(step / last):.1f},{y(value):.1f}" for step, value in points)
    return f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="2"/>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="the target")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--work", type=Path, help="where the curves are, in place of the results here")
    arguments = parser.parse_args()
    work = arguments.work or RESULTS / arguments.name
    arguments.picture.write_text(draw(arguments.name, work), encoding="utf-8")


if __name__ == "__main__":
    main()
