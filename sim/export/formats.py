"""The exporters by the names of their formats, and where each writes if it is not told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from engine.errors import ConfigError
from engine.trace import events as ev
from sim.export.kv_events import export_kv_events
from sim.export.otlp import export_otlp
from sim.export.perfetto import export_perfetto
from sim.export.tables import export_csv, export_parquet
from sim.export.walk import Report

Export = Callable[[ev.Header, Iterable[ev.Event], Path], Report]


class Format(NamedTuple):
    """A format to export to."""

    export: Export
    suffix: str
    """What replaces the trace's own."""
    is_folder: bool = False


FORMATS = {
    "perfetto": Format(export_perfetto, ".perfetto.json"),
    "csv": Format(export_csv, ".csv", is_folder=True),
    "parquet": Format(export_parquet, ".parquet", is_folder=True),
    "otlp-json": Format(export_otlp, ".otlp.jsonl"),
    "vllm-kv-events": Format(export_kv_events, ".kv-events.jsonl"),
}


def format_named(name: str) -> Format:
    """A format by its name.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in FORMATS:
        raise ConfigError(f"A trace is exported to one of {', '.join(FORMATS)}, not to {name!r}.")
    return FORMATS[name]


def default_place(trace: Path, format: Format) -> Path:
    """In the working directory, named after the trace."""
    return Path(trace.name.removesuffix(".zst").removesuffix(".jsonl") + format.suffix)


def export(format: Format, header: ev.Header, events: Iterable[ev.Event], place: Path) -> Report:
    """Write a trace; a file appears only when it is whole.

    Raises:
        ConfigError: a folder is where a file should be written, or the other way round, or there is no such folder.
        OSError: it cannot be written.
    """
    if format.is_folder:
        if place.exists() and not place.is_dir():
            raise ConfigError(f"The tables go into a folder, but {place} is a file.")
        return format.export(header, events, place)
    if place.is_dir():
        raise ConfigError(f"The export is a file, but {place} is a folder.")
    if not place.absolute().parent.is_dir():
        raise ConfigError(f"The export must go into a folder that is there, got {place}.")
    # The suffix stays at the end: it may choose the encoding.
    unfinished = place.with_name(f".unfinished-{place.name}")
    try:
        report = format.export(header, events, unfinished)
        unfinished.replace(place)
    finally:
        unfinished.unlink(missing_ok=True)
    return report
