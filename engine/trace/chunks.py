"""A trace file cut into chunks: runs of whole lines that can be read without what stands before them.

Of a plain file any run of lines is one; of a compressed file a frame is, since its frames are independent and hold
whole lines. (Of a file that another tool has compressed, as many frames as it takes to come to the end of a line.)
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import zstandard

#: Of a plain file: about as much as is decoded at once, when somebody looks at one event of it.
CHUNK_BYTES = 1 << 18

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class Chunk(NamedTuple):
    """A run of whole lines."""

    offset: int
    """Where it begins in the file, in bytes."""
    size: int
    """Bytes that it takes there, compressed if the file is."""
    text: bytes
    """The lines, each with its newline."""


class ChunkedFile:
    """A trace file, to be read from its beginning or anywhere.

    Args:
        file: the file; it is closed when this is no longer used.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.damage: str | None = None
        """Once the last chunk has been read: what is wrong with the end of the file, if something is."""
        self.rest = b""
        """Once the last chunk has been read: what follows the last whole line."""
        self._file = file
        weakref.finalize(self, file.close)
        file.seek(0)
        self._is_compressed = file.read(len(_ZSTD_MAGIC)) == _ZSTD_MAGIC

    def chunks(self) -> Iterator[Chunk]:
        """Every chunk in order. `damage` and `rest` are known at the end."""
        offset = size = 0
        pieces: list[bytes] = []
        for piece_size, piece in self._frames() if self._is_compressed else self._pieces():
            size += piece_size
            pieces.append(piece)
            if piece.endswith(b"\n"):
                yield Chunk(offset, size, b"".join(pieces))
                offset, size = offset + size, 0
                pieces.clear()
        whole, self.rest = _whole_lines(b"".join(pieces))
        if whole:
            yield Chunk(offset, size, whole)

    def text_of(self, offset: int, size: int) -> bytes:
        """The lines of a chunk, read again."""
        self._file.seek(offset)
        data = self._file.read(size)
        if self._is_compressed:
            data = b"".join(_decompress(data))
        return _whole_lines(data)[0]

    def _pieces(self) -> Iterator[tuple[int, bytes]]:
        """Size and text of pieces of a plain file; all but the last end with a line."""
        self._file.seek(0)
        left: list[bytes] = []
        while data := self._file.read(CHUNK_BYTES):
            whole, rest = _whole_lines(data)
            if whole:
                lines = b"".join([*left, whole])
                yield len(lines), lines
                left.clear()
            left.append(rest)
        rest = b"".join(left)
        yield len(rest), rest

    def _frames(self) -> Iterator[tuple[int, bytes]]:
        """Size and text of each compressed frame, and what there is of a last incomplete one."""
        self._file.seek(0)
        unread = self._file.read(CHUNK_BYTES)
        while unread:
            decompressor = zstandard.ZstdDecompressor().decompressobj()
            size, text = 0, []
            while unread and not decompressor.eof:
                try:
                    text.append(decompressor.decompress(unread))
                except zstandard.ZstdError:
                    self.damage = "its last compressed frame is damaged"
                    return
                size += len(unread)
                unread = decompressor.unused_data if decompressor.eof else self._file.read(CHUNK_BYTES)
            if decompressor.eof:
                size -= len(unread)
                unread = unread or self._file.read(CHUNK_BYTES)
            else:
                self.damage = "its last compressed frame is incomplete"
            yield size, b"".join(text)


def _decompress(data: bytes) -> Iterator[bytes]:
    while data:
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        yield decompressor.decompress(data)
        data = decompressor.unused_data


def _whole_lines(data: bytes) -> tuple[bytes, bytes]:
    """The lines that end in a newline, and what follows them."""
    end = data.rfind(b"\n") + 1
    return data[:end], data[end:]
