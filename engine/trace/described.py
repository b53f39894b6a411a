"""What a record of the trace and its fields mean, as `engine/trace/events.py` declares it."""

from __future__ import annotations

from functools import cache

import msgspec
from msgspec import inspect


def doc_of(struct: type[msgspec.Struct]) -> str:
    """The first paragraph of a record's docstring, on one line."""
    return " ".join((struct.__doc__ or "").partition("\n\n")[0].split())


def fields_of(struct: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    """The fields of a record, in order."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return info.fields


def meaning_of(field: inspect.Field) -> str:
    """What a field holds, with its unit."""
    described = field.type.extra_json_schema if isinstance(field.type, inspect.Metadata) else None
    return str((described or {}).get("description", ""))


@cache
def meanings(struct: type[msgspec.Struct]) -> dict[str, str]:
    """What each field of a record holds, by name."""
    return {field.name: meaning_of(field) for field in fields_of(struct)}
