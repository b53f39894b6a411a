"""The index of a trace file: what passes over the whole file have found, kept so that nobody need make them again.

An index belongs to one version of one file and to the code that made it; one of another is as good as none. It holds
named sections, each compressed on its own and read only when asked for::

    sections ··· | directory: fingerprint, and name → offset and size | size of the directory (8 bytes) | magic

It lies beside its trace, `run.jsonl.zst.idx`, or in a folder of the user's if nothing can be written there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec
import zstandard

from engine.errors import TraceError

SUFFIX = ".idx"
_MAGIC = b"orrery index 1\n"
#: What is hashed of a trace: its header, and some of the first events.
_HEAD_BYTES = 1 << 16
_NUMBER_BYTES = 8


class Fingerprint(msgspec.Struct, frozen=True):
    """A version of a trace file, and of the code that reads it."""

    size: int
    mtime_ns: int
    head: str
    """Digest of how the file begins."""
    maker: str
    """Digest of the code whose results the index holds."""

    @classmethod
    def of(cls, path: Path, maker: str) -> Fingerprint:
        """The fingerprint of a file as it is now.

        Raises:
            TraceError: it cannot be read.
        """
        try:
            status = path.stat()
            with path.open("rb") as file:
                head = hashlib.sha256(file.read(_HEAD_BYTES)).hexdigest()
        except OSError as error:
            raise TraceError(f"The trace file {path} cannot be read: {error.strerror}.") from error
        return cls(status.st_size, status.st_mtime_ns, head, maker)


class _Directory(msgspec.Struct, frozen=True):
    fingerprint: Fingerprint
    sections: dict[str, tuple[int, int]]


class Index:
    """An index that is there."""

    def __init__(self, file: BinaryIO, directory: _Directory) -> None:
        self._file = file
        self._sections = directory.sections

    def section(self, name: str) -> bytes:
        """What was written under a name.

        Raises:
            KeyError: nothing was.
            TraceError: the index is damaged.
        """
        offset, size = self._sections[name]
        try:
            return zstandard.ZstdDecompressor().decompress(os.pread(self._file.fileno(), size, offset))
        except zstandard.ZstdError as error:
            raise TraceError(f"The index {self._file.name} is damaged: delete it, and it is made anew.") from error


class IndexWriter:
    """Writes the sections of an index."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._compressor = zstandard.ZstdCompressor(level=1, write_checksum=True)
        self._sections: dict[str, tuple[int, int]] = {}

    def write(self, name: str, data: bytes) -> None:
        """Add a section."""
        compressed = self._compressor.compress(data)
        self._sections[name] = (self._file.tell(), len(compressed))
        self._file.write(compressed)

    def finish(self, fingerprint: Fingerprint) -> None:
        """Add the directory."""
        directory = msgspec.msgpack.encode(_Directory(fingerprint, self._sections))
        self._file.write(directory + len(directory).to_bytes(_NUMBER_BYTES, "little") + _MAGIC)


def find_index(path: Path, folder: Path, fingerprint: Fingerprint) -> Index | None:
    """The index of a trace, beside it or in that folder, if there is one of this fingerprint."""
    for place in _places(path, folder):
        try:
            file = place.open("rb")
        except OSError:
            continue  # most traces have none
        directory = _directory(file)
        if directory is not None and directory.fingerprint == fingerprint:
            return Index(file, directory)
        file.close()
    return None


@contextmanager
def new_index(path: Path, folder: Path, fingerprint: Fingerprint) -> Iterator[IndexWriter | None]:
    """Write the index of a trace, which is there once the block has been left; None if no place can be written."""
    with contextlib.ExitStack() as stack:
        for place in _places(path, folder):
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                file = tempfile.NamedTemporaryFile(dir=place.parent, prefix=f".{place.name}", delete=False)  # noqa: SIM115
            except OSError:
                continue  # a folder that is not ours to write in
            stack.callback(Path(file.name).unlink, missing_ok=True)
            os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))  # who may read the one may read the other
            writer = IndexWriter(stack.enter_context(file))  # type: ignore[arg-type]
            yield writer
            writer.finish(fingerprint)
            file.flush()
            Path(file.name).replace(place)
            return
        yield None


def _places(path: Path, folder: Path) -> list[Path]:
    path = path.absolute()
    return [path.with_name(path.name + SUFFIX), folder / (hashlib.sha256(os.fsencode(path)).hexdigest()[:32] + SUFFIX)]


def _directory(file: BinaryIO) -> _Directory | None:
    """The directory at the end of a file; None if it is no index, or half of one."""
    end = _NUMBER_BYTES + len(_MAGIC)
    length = file.seek(0, os.SEEK_END)
    if length < end:
        return None
    file.seek(length - end)
    size = int.from_bytes(file.read(_NUMBER_BYTES), "little")
    if file.read() != _MAGIC or size > length - end:
        return None
    file.seek(length - end - size)
    try:
        return msgspec.msgpack.decode(file.read(size), type=_Directory)
    except msgspec.MsgspecError:
        return None
