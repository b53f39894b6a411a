"""What all readers share: JSON out of a file, and a sentence when it is not what it should be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from engine.errors import WorkloadError

Shape = TypeVar("Shape")


def read_json(path: Path) -> Any:
    """The value of a JSON file.

    Raises:
        WorkloadError: it is no UTF-8 or no JSON; says the line.
        OSError: it cannot be read.
    """
    return _parse(_text(path), path, 1)


def read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """The values of a JSON Lines file with their line numbers; blank lines are passed over.

    Raises:
        WorkloadError: it is no UTF-8, or a line is no JSON; says which.
        OSError: it cannot be read.
    """
    for number, line in enumerate(_text(path).split("\n"), 1):
        if line.strip():
            yield number, _parse(line, path, number)


def shaped(value: Any, shape: type[Shape], path: Path, place: str) -> Shape:
    """A value as the type that it should have.

    Args:
        value: what JSON gave.
        shape: a `msgspec.Struct`, whose fields say what is allowed.
        path: the file.
        place: where in the file, as the user would look for it.

    Raises:
        WorkloadError: it is no such value; says the place and what was expected.
    """
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise WorkloadError(f"{path}, {place}: {str(error)[0].lower()}{str(error)[1:]}.") from error


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise WorkloadError(f"{path}, line {line}: this is no UTF-8 text.") from error


def _parse(text: str, path: Path, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise WorkloadError(f"{path}, line {line}, column {error.colno}: this is no JSON ({error.msg}).") from error
    except RecursionError as error:
        raise WorkloadError(f"{path}, line {first_line}: its lists are nested too deeply.") from error
