"""Colours: one per request, everywhere the same, told apart by people who see few of them.

The colours of the page itself are Streamlit's theme (`.streamlit/config.toml`), which reaches the figures as CSS
variables `--st-…`; `board.css` gives them their names here. So nothing in a figure knows whether it is dark.
"""

from __future__ import annotations

from typing import Literal

Theme = Literal["light", "dark"]

#: Okabe and Ito, "Color Universal Design" (2008); their black is the ink of the theme, which is light in the dark.
REQUEST_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "var(--ink)")

#: A ninth request takes the first colour again, with a pattern over it; a number always stands beside the colour.
_PATTERNS = (
    "none",
    "repeating-linear-gradient(45deg, var(--hatch) 0 2px, transparent 2px 6px)",
    "repeating-linear-gradient(-45deg, var(--hatch) 0 2px, transparent 2px 6px)",
    "radial-gradient(var(--hatch) 1.2px, transparent 1.6px) 0 0 / 6px 6px",
)

_HATCH = "color-mix(in srgb, var(--on-q) 26%, transparent)"
_WHITE, _BLACK = "#FFFFFF", "#14171C"


def request_class(serial: int) -> str:
    """CSS classes that give an element the colour of a request: it may then use `--q`, `--on-q` and `--pattern`."""
    repeat = serial // len(REQUEST_COLOURS) % len(_PATTERNS)
    return f"q{serial % len(REQUEST_COLOURS)}" + (f" again{repeat}" if repeat else "")


def request_colour(serial: int) -> str:
    """The CSS value of a request's colour."""
    return f"var(--q{serial % len(REQUEST_COLOURS)})"


def request_css() -> str:
    """The rules behind `request_class` and `request_colour`."""
    rules = [":host { " + " ".join(f"--q{i}: {colour};" for i, colour in enumerate(REQUEST_COLOURS)) + " }"]
    for i, colour in enumerate(REQUEST_COLOURS):
        rules.append(f".q{i} {{ --q: var(--q{i}); --on-q: {_ink_on(colour)}; --hatch: {_HATCH}; --pattern: none; }}")
    for i, pattern in enumerate(_PATTERNS[1:], 1):
        rules.append(f".again{i} {{ --pattern: {pattern}; }}")
    return "\n".join(rules)


def _ink_on(colour: str) -> str:
    """Black or white, whichever reads better on a colour."""
    if not colour.startswith("#"):
        return "var(--panel)"
    return max(_WHITE, _BLACK, key=lambda ink: contrast(ink, colour))


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours `#RRGGBB`, 1 to 21 (WCAG 2.2)."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
