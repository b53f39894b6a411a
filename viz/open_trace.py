"""Opening traces: by the name of a shipped one or by path, each read once for as long as its file does not change."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import msgspec
import streamlit as st

from engine.errors import TraceError
from sim.fork import Change, fork_trace
from sim.replay import ReplayReport
from sim.timeline import Timeline
from viz.proofs import replayed

SHIPPED = Path(__file__).parent / "traces"


@dataclass(frozen=True)
class FileVersion:
    """A file as it is now; when it grows, this is another key of the cache."""

    path: str
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> FileVersion:
        """The version of a file.

        Raises:
            TraceError: there is no such file, or it is a device or a pipe, whose reading might never end.
        """
        try:
            status = path.stat()
        except OSError as error:
            raise TraceError(f"The trace file {path} cannot be read: {error.strerror}.") from error
        if not stat.S_ISREG(status.st_mode):
            raise TraceError(f"The trace file {path} cannot be read: it is no regular file.")
        return cls(str(path), status.st_size, status.st_mtime_ns)


def shipped_names() -> list[str]:
    """Names of the traces that come with Orrery."""
    return sorted(path.name.removesuffix(".jsonl") for path in SHIPPED.glob("*.jsonl"))


def find(name: str) -> Path:
    """The file that a name in the address means: a shipped trace, or a path.

    Raises:
        TraceError: it can be neither.
    """
    return SHIPPED / f"{name}.jsonl" if name in shipped_names() else path_of(name)


def path_of(written: str) -> Path:
    """The path that a person wrote, with `~` for a home.

    Raises:
        TraceError: no file can have such a name, or there is no such home.
    """
    try:
        if b"\0" in os.fsencode(written):
            raise ValueError("a name ends at a NUL")
    except ValueError as error:
        raise TraceError(f"The trace file {written!r} cannot be read: no file can have such a name.") from error
    try:
        return Path(written).expanduser()
    except RuntimeError as error:
        raise TraceError(f"The trace file {written} cannot be read: there is no such home folder.") from error


def open_timeline(name: str) -> tuple[Timeline, FileVersion]:
    """The trace of that name or path, ready to step through.

    Raises:
        TraceError: no such file, no trace, an unknown version, or damaged.
    """
    version = FileVersion.of(find(name))
    return _timeline(version), version


@st.cache_resource(max_entries=24, show_spinner="Reading the trace; a large one takes a minute the first time …")
def _timeline(version: FileVersion) -> Timeline:
    return Timeline.open(version.path)


@st.cache_resource(max_entries=32, show_spinner="Replaying the trace …")
def verdict(version: FileVersion) -> ReplayReport:
    """What a replay of the trace says.

    Raises:
        TraceError: it cannot be replayed.
    """
    return replayed(_timeline(version))


def forked(version: FileVersion, change: Change) -> Timeline:
    """A fork of a trace, made once.

    Raises:
        ConfigError, TraceError: see `sim.fork.fork_trace`.
    """
    return _forked(version, msgspec.json.encode(change))


@st.cache_resource(max_entries=16, show_spinner="Running it again, otherwise …")
def _forked(version: FileVersion, change: bytes) -> Timeline:
    return Timeline(fork_trace(_timeline(version).trace, msgspec.json.decode(change, type=Change)))
