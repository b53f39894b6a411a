"""Where weights lie. They are read whole at every step, so in huge pages where the system has them.

A processor that streams through pages of 4 KiB looks up an address every 64 cache lines, and its prefetchers stop at
the end of each; in pages of 2 MiB a step takes a tenth less. Matrices are smaller than that, so many share a chunk.
"""

from __future__ import annotations

import contextlib
import mmap
import threading

import torch
from torch import Tensor

_HUGE_PAGE = 2 << 20
_CACHE_LINE = 64

#: A chunk is given back when the last of its tensors is gone.
_CHUNK_BYTES = 16 * _HUGE_PAGE


class _Chunk:
    """Memory that is handed out from its begin to its end."""

    def __init__(self, num_bytes: int) -> None:
        # Whoever comes next may not be in inference mode, where tensors that were made in it cannot be written to.
        with torch.inference_mode(False):
            if hasattr(mmap, "MADV_HUGEPAGE"):
                memory = mmap.mmap(-1, num_bytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                with contextlib.suppress(OSError):  # a kernel without huge pages
                    memory.madvise(mmap.MADV_HUGEPAGE)
                self._bytes = torch.frombuffer(memory, dtype=torch.uint8)
            else:
                self._bytes = torch.empty(num_bytes + _HUGE_PAGE, dtype=torch.uint8)
        self._next = -self._bytes.data_ptr() % _HUGE_PAGE

    def take(self, num_bytes: int) -> Tensor | None:
        """[num_bytes] uint8; None: it is full."""
        begin, end = self._next, self._next + num_bytes
        if end > self._bytes.numel():
            return None
        self._next = end + -end % _CACHE_LINE
        return self._bytes[begin:end]


class _Memory:
    """Chunks, as many as are needed; the newest is kept for those who come next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: _Chunk | None = None

    def take(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8."""
        with self._lock:
            taken = None if self._newest is None else self._newest.take(num_bytes)
            if taken is None:
                self._newest = _Chunk(max(num_bytes, _CHUNK_BYTES))
                taken = self._newest.take(num_bytes)
        assert taken is not None, "A new chunk holds what it was made for."
        return taken


_memory = _Memory()


def lasting(tensor: Tensor) -> Tensor:
    """A contiguous copy of a tensor on the CPU, where reading it again and again is fastest."""
    taken = _memory.take(tensor.numel() * tensor.element_size())
    copy = taken.view(tensor.dtype).view(tensor.shape)
    return copy.copy_(tensor)
