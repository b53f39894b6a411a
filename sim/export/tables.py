"""A run as three tables, a file each: `events`, `steps` and `requests`, as CSV or as Parquet.

| table | a row is | columns |
| --- | --- | --- |
| `events` | an event | seq, ts, step, engine, rank, type, the request that it is about, all else as JSON |
| `steps` | a step | the fields of `IterationMetrics` |
| `requests` | a request | the fields and spans of `RequestMetrics` |

Points in time and spans are nanoseconds; what there is not is empty.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Protocol, Self

import msgspec

from engine.metrics import IterationMetrics, RequestMetrics
from engine.trace import events as ev
from sim.export.walk import Report, walk

_WHOLE, _REAL, _TEXT = "int64", "float64", "string"

_EVENTS = {
    "seq": _WHOLE,
    "ts": _WHOLE,
    "step": _WHOLE,
    "engine": _WHOLE,
    "rank": _WHOLE,
    "type": _TEXT,
    "request": _WHOLE,
    "data": _TEXT,
}
_STEPS = {
    **dict.fromkeys(("step", "started_ns", "ended_ns", "duration_ns", "token_budget", "num_running"), _WHOLE),
    **dict.fromkeys(("num_waiting", "num_rows", "tokens", "prefill_tokens", "decode_tokens"), _WHOLE),
    **dict.fromkeys(("output_tokens", "usable_blocks", "free_blocks", "blocks_in_use"), _WHOLE),
    "kv_cache_usage": _REAL,
    **dict.fromkeys(("preemptions", "queried_tokens", "hit_tokens", "evictions", "finishes"), _WHOLE),
}
_REQUESTS = {
    "serial": _WHOLE,
    "request_id": _TEXT,
    **dict.fromkeys(("num_prompt_tokens", "num_output_tokens", "num_cached_tokens", "num_preemptions"), _WHOLE),
    "finish_reason": _TEXT,
    **dict.fromkeys(("arrival_ns", "first_scheduled_ns", "first_token_ns", "last_token_ns", "finished_ns"), _WHOLE),
    **dict.fromkeys(("queue_ns", "prefill_ns", "decode_ns", "ttft_ns", "e2el_ns"), _WHOLE),
    "tpot_ns": _REAL,
}
_TABLES = {"events": _EVENTS, "steps": _STEPS, "requests": _REQUESTS}

#: Rows of a Parquet row group.
_GROUP_ROWS = 8192


class _Table(Protocol):
    """A table being written."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def add(self, row: list[Any]) -> None: ...


def export_csv(header: ev.Header, events: Iterable[ev.Event], path: Path) -> Report:
    """Write a trace as `events.csv`, `steps.csv` and `requests.csv`.

    Args:
        header: of the trace.
        events: of the trace, in order.
        path: the folder; it is made.

    Raises:
        OSError: the files cannot be written.
    """
    return _export(header, events, path, "csv", _CsvTable)


def export_parquet(header: ev.Header, events: Iterable[ev.Event], path: Path) -> Report:
    """Write a trace as `events.parquet`, `steps.parquet` and `requests.parquet`.

    Args:
        header: of the trace.
        events: of the trace, in order.
        path: the folder; it is made.

    Raises:
        ModuleNotFoundError: pyarrow is not installed.
        OSError: the files cannot be written.
    """
    import pyarrow.parquet

    return _export(header, events, path, "parquet", lambda file, columns: _ParquetTable(pyarrow, file, columns))


def _export(
    header: ev.Header,
    events: Iterable[ev.Event],
    folder: Path,
    suffix: str,
    table: Callable[[Path, dict[str, str]], _Table],
) -> Report:
    report = Report()
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        tables = {
            name: stack.enter_context(table(folder / f"{name}.{suffix}", columns)) for name, columns in _TABLES.items()
        }
        for part in walk(header, events):
            name, row = _row(part)
            tables[name].add(row)
            report.written[name] += 1
    return report


def _row(part: ev.Event | IterationMetrics | RequestMetrics) -> tuple[str, list[Any]]:
    """The table that a part belongs to, and its row."""
    if isinstance(part, IterationMetrics):
        return "steps", [getattr(part, name) for name in _STEPS]
    if isinstance(part, RequestMetrics):
        return "requests", [getattr(part, name) for name in _REQUESTS]
    rest = msgspec.to_builtins(part)
    first = [rest.pop(name, None) for name in _EVENTS if name != "data"]
    return "events", [*first, msgspec.json.encode(rest).decode()]


class _CsvTable:
    def __init__(self, path: Path, columns: dict[str, str]) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file)
        self._writer.writerow(columns)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, row: list[Any]) -> None:
        self._writer.writerow(row)


class _ParquetTable:
    def __init__(self, pyarrow: ModuleType, path: Path, columns: dict[str, str]) -> None:
        self._schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in columns.items()])
        self._group_of = pyarrow.RecordBatch.from_pylist
        self._writer = pyarrow.parquet.ParquetWriter(path, self._schema)
        self._rows: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._write_group()
        self._writer.close()

    def add(self, row: list[Any]) -> None:
        self._rows.append(dict(zip(self._schema.names, row, strict=True)))
        if len(self._rows) == _GROUP_ROWS:
            self._write_group()

    def _write_group(self) -> None:
        self._writer.write_batch(self._group_of(self._rows, schema=self._schema))
        self._rows.clear()
