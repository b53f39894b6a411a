"""Names, colours and numbers as the terminal shows them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.text import Text

from viz.theme import REQUEST_COLOURS, contrast

#: The eighth colour of the app is its ink, which a terminal does not tell.
_COLOURS = (*REQUEST_COLOURS[:-1], "#9A9A9A")
_INKS = ("#FFFFFF", "#14171C")

_VISIBLE = {"\n": "⏎", "\t": "⇥"}


def colour(serial: int) -> str:
    """A request's colour, `#RRGGBB`; the ninth request has that of the first."""
    return _COLOURS[serial % len(_COLOURS)]


def line_style(serial: int) -> Style:
    """For lines and bars of a request."""
    return Style(color=colour(serial))


def filled_style(serial: int) -> Style:
    """For text on a field of the request's colour, in black or white, whichever reads better."""
    ground = colour(serial)
    return Style(color=max(_INKS, key=lambda ink: contrast(ink, ground)), bgcolor=ground, bold=True)


def chip(serial: int, width: int = 0) -> Text:
    """The name of a request in its colour."""
    return Text(f"r{serial}".ljust(width), line_style(serial) + Style(bold=True))


def visible(text: str) -> str:
    """Text of a token with its blanks made visible and its control characters made harmless."""
    return one_line(text).replace(" ", "·")


def one_line(text: str) -> str:
    """Text of others, such as an id or the message of a failure, that must neither break a line nor steer the
    terminal."""
    return "".join(_VISIBLE.get(char, char if char.isprintable() else f"\\x{ord(char):02x}") for char in text)


def panel(title: str, subtitle: str | Text, *body: RenderableType) -> RenderableType:
    """One question and its answer."""
    head = Text.assemble((title, "bold"), "  ", Text(subtitle, "dim") if isinstance(subtitle, str) else subtitle)
    return Group(head, *(Padding(part, (0, 0, 0, 2)) for part in body), "")


def listed(parts: Iterable[str]) -> str:
    """Facts side by side; those without a number stay away."""
    return " · ".join(part for part in parts if part)


def counted(number: int, thing: str) -> str:
    """`1 block`, `2 blocks`, and nothing for none."""
    if number == 0:
        return ""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def duration(nanoseconds: int) -> str:
    """A time in the unit that suits it."""
    if nanoseconds < 1_000_000:
        return f"{nanoseconds / 1e3:.0f} µs"
    if nanoseconds < 1_000_000_000:
        return f"{nanoseconds / 1e6:.1f} ms"
    return f"{nanoseconds / 1e9:.2f} s"


def share(part: float) -> str:
    """A share as a percentage; little is not nothing."""
    return "<1%" if 0 < part < 0.01 else f"{part:.0%}"
