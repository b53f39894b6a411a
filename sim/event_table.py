"""Two events beside each other in the terminal, with the fields marked in which they differ."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from engine.trace.events import Event
from sim.field_differences import differing_fields


def two_events(first: tuple[str, Event | None], second: tuple[str, Event | None]) -> Table:
    """A row per field.

    Args:
        first, second: the head of its column, and the event; None if there is none.
    """
    (first_head, one), (second_head, other) = first, second
    table = Table(box=None, padding=(0, 3, 0, 2))
    table.add_column("field", style="dim")
    table.add_column(first_head)
    table.add_column(second_head)
    differing = {each.field for each in differing_fields(one, other)} if one is not None and other is not None else ()
    here, there = _fields(one), _fields(other)
    for name in dict.fromkeys([*here, *there]):
        style = "bold red" if name in differing or not (here and there) else ""
        table.add_row(name, Text(_value(here, name), style), Text(_value(there, name), style))
    return table


def _fields(event: Event | None) -> dict[str, Any]:
    if event is None:
        return {}
    fields = msgspec.structs.asdict(event)
    return {name: value for name, value in fields.items() if name not in ("seq", "ts", "engine", "rank")}


def _value(fields: dict[str, Any], name: str) -> str:
    return repr(fields[name]) if name in fields else "–"
