"""The speeds of a comparison as a picture: a row per contender, a column of bars per workload."""

from __future__ import annotations

from html import escape

from engine.bench.results import Comparison, ContenderResult

#: Okabe and Ito, "Color Universal Design" (2008): told apart by people who see few colours.
_COLOURS = {"Orrery": "#0072B2", "vLLM": "#E69F00", "llama.cpp": "#009E73", "transformers": "#CC79A7"}
_INK, _FAINT, _TRACK, _PAPER = "#14171C", "#5B6470", "#F1F3F6", "#FFFFFF"

_ROW, _BAR = 26, 14
_TOP, _MARGIN = 64, 16
_NAMES, _COLUMN, _GAP = 168, 176, 20
_VALUE = 46  # kept free beside the longest bar for its number


def draw(comparison: Comparison) -> str:
    """The picture as an SVG file."""
    results = [result for result in comparison.contenders if result.seconds_to_ready]
    width = _MARGIN * 2 + _NAMES + len(comparison.workloads) * (_COLUMN + _GAP) - _GAP
    height = _TOP + len(results) * _ROW + _MARGIN
    title = f"{comparison.model}, {comparison.machine.threads} threads: output tokens per second"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{width}" height="{height}" fill="{_PAPER}"/>',
        f'<text x="{_MARGIN}" y="26" font-size="15" font-weight="600">{escape(title)}</text>',
    ]
    for number, result in enumerate(results):
        weight = ' font-weight="600"' if result.engine == "Orrery" else ""
        parts.append(f'<text x="{_MARGIN}" y="{_middle(number) + 4}"{weight}>{escape(result.name)}</text>')
    for number, workload in enumerate(comparison.workloads):
        parts += _column(_MARGIN + _NAMES + number * (_COLUMN + _GAP), workload, results)
    return "\n".join([*parts, "</svg>", ""])


def _column(left: int, workload: str, results: list[ContenderResult]) -> list[str]:
    """The bars of one workload, the longest of them as long as the column allows."""
    fastest = max((result.speed(workload) or 0.0 for result in results), default=0.0)
    parts = [f'<text x="{left}" y="{_TOP - 10}" font-weight="600">{escape(workload)}</text>']
    for number, result in enumerate(results):
        speed = result.speed(workload)
        if speed is None:
            parts.append(f'<text x="{left}" y="{_middle(number) + 4}" fill="{_FAINT}">not measured</text>')
            continue
        room, top = _COLUMN - _VALUE, _middle(number) - _BAR // 2
        length = max(1.0, room * speed / fastest)
        colour = _COLOURS.get(result.engine, _FAINT)
        parts.append(f'<rect x="{left}" y="{top}" width="{room}" height="{_BAR}" rx="2" fill="{_TRACK}"/>')
        parts.append(f'<rect x="{left}" y="{top}" width="{length:.1f}" height="{_BAR}" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{left + room + 6}" y="{_middle(number) + 4}">{_figure(speed)}</text>')
    return parts


def _middle(row: int) -> int:
    return _TOP + row * _ROW + _ROW // 2


def _figure(speed: float) -> str:
    return f"{speed:,.0f}" if speed >= 100 else f"{speed:.1f}"
