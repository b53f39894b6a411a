"""The fields of an event, as a table may show them: short where it is one line, folded where it is long."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.trace.events import Event
from viz.figures.html import Html, el, join

#: Stamps that every event has; they stand elsewhere, or say the same of all events of a step.
_STAMPS = frozenset(Event.__struct_fields__)

#: Values of a list on one line, and before the rest is folded away.
_SHORT, _LONG = 6, 24
#: Characters of a text on one line, and before the rest is folded away.
_SHORT_TEXT, _LONG_TEXT = 48, 240
#: Characters of what is folded away; more are in the exact JSON.
_MOST = 20_000


def prose(text: str) -> Html:
    """A text of the documentation, with what stands between backticks set as code."""
    parts = text.split("`")
    return join(el("code", "", part) if place % 2 else part for place, part in enumerate(parts))


def fields(event: Event) -> dict[str, Any]:
    """Its own fields as JSON has them, by name, without those that all events share."""
    return {name: value for name, value in msgspec.to_builtins(event).items() if name not in _STAMPS and name != "type"}


def brief(value: Any) -> str:
    """A value on one line: of a long one the beginning, and how long it is."""
    if isinstance(value, (list, tuple)):
        shown = " ".join(map(brief, value[:_SHORT]))
        return f"[{shown}]" if len(value) <= _SHORT else f"[{shown} … {len(value):,} values]"
    if isinstance(value, dict):
        shown = ", ".join(f"{name}: {brief(each)}" for name, each in list(value.items())[:_SHORT])
        return f"{{{shown}{', …' if len(value) > _SHORT else ''}}}"
    written = _plain(value)
    return written if len(written) <= _SHORT_TEXT else f"{written[:_SHORT_TEXT]}… ({len(written):,} characters)"


def value(whole: Any) -> Html:
    """A value in full; a long one behind its beginning, in a fold."""
    written = _plain(whole)
    long_list = isinstance(whole, (list, tuple)) and len(whole) > _LONG
    if not long_list and len(written) <= _LONG_TEXT:
        return el("code", "", written)
    rest = written if len(written) <= _MOST else f"{written[:_MOST]} … {len(written) - _MOST:,} characters more"
    return el("details", "long", el("summary", "", el("code", "", brief(whole))), el("code", "", rest))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
