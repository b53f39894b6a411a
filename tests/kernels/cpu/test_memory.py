"""Memory for weights: what is copied there, where it lies, and that it is given back."""

import sys
from pathlib import Path

import pytest
import torch

from kernels.cpu import memory
from kernels.cpu.packing import PackedMatrix

MIB = 1 << 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_copies_do_not_overlap(dtype: torch.dtype) -> None:
    originals = [torch.arange(size, dtype=torch.float32).to(dtype).view(-1, 3) for size in (3, 300, 6, 99)]
    copies = [memory.lasting(tensor) for tensor in originals]
    for original, copy in zip(originals, copies, strict=True):
        assert torch.equal(original, copy)
        assert copy.data_ptr() % 64 == 0
        assert copy.is_contiguous()


def test_a_transposed_tensor_is_copied_as_it_reads() -> None:
    tensor = torch.arange(12).view(3, 4).T
    assert torch.equal(memory.lasting(tensor), tensor)


def test_one_tensor_may_be_larger_than_a_chunk() -> None:
    large = torch.ones(40 * MIB, dtype=torch.uint8)
    copy = memory.lasting(large)
    assert copy.numel() == large.numel()
    assert bool(copy.all())


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells of its pages in /proc")
def test_weights_lie_where_huge_pages_were_asked_for_and_are_given_back() -> None:
    matrix = PackedMatrix(torch.randn(4096, 5000))  # a chunk of its own
    at = matrix.panels.data_ptr()
    assert "hg" in _flags(at)
    del matrix
    memory.lasting(torch.ones(40 * MIB, dtype=torch.uint8))  # the newest chunk is kept, for those who come next
    assert not _flags(at)


def _flags(address: int) -> list[str]:
    """What the system knows of the mapping that an address lies in; nothing if there is none."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        word = line.split(maxsplit=1)[0]
        if "-" in word and not word.endswith(":"):
            begin, end = (int(part, 16) for part in word.split("-"))
            inside = begin <= address < end
        elif inside and word == "VmFlags:":
            return line.split()[1:]
    return []


def test_memory_that_was_taken_in_inference_mode_can_be_written_to_outside_of_it() -> None:
    with torch.inference_mode():
        memory.lasting(torch.ones(40 * MIB, dtype=torch.uint8))  # a new chunk
        memory.lasting(torch.ones(MIB, dtype=torch.uint8))  # another one, with room left
    assert bool(memory.lasting(torch.ones(MIB, dtype=torch.uint8)).all())
