"""What all readers share: the rows of a file, one after the other, and a sentence when one is not what it should be."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from engine.errors import WorkloadError

if TYPE_CHECKING:
    from collections import Counter

Shape = TypeVar("Shape")

#: A time as a file has it, in seconds or milliseconds; three hundred years of them are more than any trace has.
FileTime = Annotated[float, Meta(ge=0, le=1e13)]


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
    for number, line in text_lines(path):
        if line.strip():
            yield number, _parse(line, path, number)


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers, from 1; read as they are asked for, so that a file may be large.

    Raises:
        WorkloadError: it is no UTF-8; says the line.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise WorkloadError(f"{path}, line {number}: this is no UTF-8 text.") from error


def shaped_lines(path: Path, shape: type[Shape]) -> Iterator[tuple[int, Shape]]:
    """The lines of a JSON Lines file as the type that they should have, with their numbers; blank ones are passed over.

    Args:
        path: the file.
        shape: a `msgspec.Struct`, whose fields say what is allowed.

    Raises:
        WorkloadError: a line is no such value; says which and why.
        OSError: the file cannot be read.
    """
    decoder = msgspec.json.Decoder(shape)
    for number, line in text_lines(path):
        if line.strip():
            try:
                value = decoder.decode(line)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise WorkloadError(f"{path}, line {number}: {_clause(error)}.") from error
            yield number, value


def shaped_rows(path: Path, shape: type[Shape]) -> Iterator[tuple[int, Shape]]:
    """The rows of a CSV file, with the numbers of their lines; columns are found by the names in the first line.

    Args:
        path: the file.
        shape: a `msgspec.Struct`, whose fields are named as the columns; other columns are passed over.

    Raises:
        WorkloadError: a column is missing, or a row is no such value; says which and why.
        OSError: the file cannot be read.
    """
    rows = csv.DictReader((line for _, line in text_lines(path)), restkey="", strict=True)
    try:
        missing = [name for name in _required_columns(shape) if name not in (rows.fieldnames or ())]
        if missing:
            raise WorkloadError(f"{path}: its first line names no column {missing[0]!r}.")
        for row in rows:
            if "" in row or None in row.values():
                raise WorkloadError(f"{path}, line {rows.line_num}: it has not as many cells as the first line.")
            yield rows.line_num, _converted(row, shape, path, f"line {rows.line_num}", strict=False)
    except csv.Error as error:
        raise WorkloadError(f"{path}, line {rows.line_num}: this is no CSV ({error}).") from error


def _required_columns(shape: type[Any]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(shape) if field.required]


def cannot_be_sent(num_prompt_tokens: int, num_output_tokens: int, left_out: Counter[str]) -> bool:
    """Whether a request lacks a prompt or an output; then it is counted, by what it lacks."""
    if num_prompt_tokens and num_output_tokens:
        return False
    left_out["without output tokens" if num_prompt_tokens else "without prompt tokens"] += 1
    return True


class Since:
    """The points in time of a file, counted from its first; they must not go back.

    Args:
        path: the file, for the sentence of an error.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._first: int | None = None
        self._last = 0

    def first(self, time_ns: int, line: int) -> int:
        """Nanoseconds since the first point in time.

        Raises:
            WorkloadError: it lies before the one of the line above.
        """
        if self._first is None:
            self._first = self._last = time_ns
        if time_ns < self._last:
            raise WorkloadError(
                f"{self._path}, line {line}: its time lies before that of the request above; "
                "the requests of a file must be in the order of their arrival."
            )
        self._last = time_ns
        return time_ns - self._first


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
    return _converted(value, shape, path, place, strict=True)


def _converted(value: Any, shape: type[Shape], path: Path, place: str, *, strict: bool) -> Shape:
    try:
        return msgspec.convert(value, shape, strict=strict)
    except msgspec.ValidationError as error:
        raise WorkloadError(f"{path}, {place}: {_clause(error)}.") from error


def _clause(error: Exception) -> str:
    return "its lists are nested too deeply" if isinstance(error, RecursionError) else _uncapitalised(str(error))


def _uncapitalised(sentence: str) -> str:
    return sentence if sentence.startswith("JSON") else sentence[0].lower() + sentence[1:]


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
