"""Specimens: kernels in a typical shape, to be compiled with no device at hand (`kernels.aot`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Specimen(NamedTuple):
    """One kernel as the launcher would launch it. Each file of kernels lists its own in `specimens()`."""

    name: str
    """Unique among all; what the table calls it."""
    fn: Any
    """The function under `kernels.jit.jit`."""
    signature: Mapping[str, str]
    """Triton's type of every argument that is not in `constexprs`: "*bf16" (a pointer), "i32", "fp32"; with ":16" after
    an integer that is a multiple of 16, which lets loads be wide. Pointers always are."""
    constexprs: Mapping[str, object]
    """Values of the compile-time arguments."""
    num_warps: int
    num_stages: int
    flops: float
    """Arithmetic operations of one program, in the shape that the constants and the name describe."""
    bytes: float
    """Bytes that the program reads from and writes to global memory, each once."""
