"""Triton kernels that cost nothing until they are launched.

Importing Triton takes a few tenths of a second, and it exists on Linux only, while every kernel here has a torch
reference that the CPU runs. So `jit` keeps the function as it is, and hands it to `triton.jit` at the first launch::

    if TYPE_CHECKING:
        import triton.language as tl

    @jit
    def _double_kernel(out: tl.tensor, x: tl.tensor, size: int, BLOCK: tl.constexpr) -> None:
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, 2 * tl.load(x + at, mask=at < size), mask=at < size)

    _double_kernel[(cdiv(size, 1024),)](out, x, size, BLOCK=1024)

The annotations stay strings (`from __future__ import annotations`), and `tl` is put into the module's namespace when
the first kernel of the module is launched.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from torch import Tensor


class LazyKernel:
    """A function in Triton's language, not yet known to Triton."""

    def __init__(self, function: Callable[..., Any], varying: Sequence[str]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._varying = list(varying)

    @functools.cached_property
    def jitted(self) -> Any:
        """What `triton.jit` makes of it; under TRITON_INTERPRET=1 that runs on the CPU."""
        import triton
        import triton.language

        namespace = self._function.__globals__
        namespace["tl"] = triton.language
        # Triton looks the functions that a kernel calls up by their global names, and wants to find its own kind there.
        for name in self._function.__code__.co_names:
            called = namespace.get(name)
            if isinstance(called, LazyKernel):
                namespace[name] = called.jitted
        return triton.jit(self._function, do_not_specialize=self._varying)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.jitted[grid]

    def __call__(self, *args: Any) -> Any:
        raise TypeError(f"{self.__name__} runs inside other kernels, or is launched over a grid.")  # type: ignore[attr-defined]


@overload
def jit(function: Callable[..., Any]) -> LazyKernel: ...


@overload
def jit(*, varying: Sequence[str]) -> Callable[[Callable[..., Any]], LazyKernel]: ...


def jit(
    function: Callable[..., Any] | None = None, *, varying: Sequence[str] = ()
) -> LazyKernel | Callable[[Callable[..., Any]], LazyKernel]:
    """Mark a function as a Triton kernel, or as a part of some.

    Args:
        varying: integer arguments that change from step to step. Triton would otherwise compile the kernel again, for
            seconds, when one of them is the first to be 1 or a multiple of 16.
    """
    if function is None:
        return lambda marked: LazyKernel(marked, varying)
    return LazyKernel(function, varying)


def runs_on_triton(tensor: Tensor) -> bool:
    """Whether an operation on this tensor is Triton's: on a GPU, in a precision that the kernels compute in."""
    return tensor.is_cuda and tensor.dtype != torch.float64 and _triton_is_installed()


@functools.cache
def _triton_is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def cdiv(dividend: int, divisor: int) -> int:
    """The quotient, rounded up."""
    return -(-dividend // divisor)


def next_power_of_2(size: int) -> int:
    """The least power of two that is not below `size` ≥ 1: Triton's tiles have such sizes."""
    return 1 << (size - 1).bit_length()
