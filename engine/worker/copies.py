"""Copies between host and device that make nobody wait.

An ordinary copy to or from a GPU holds Python up until the device has done all it was given. From pinned memory it is
only queued; the pinned pages go back to torch's cache when the device has read them.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """An array as a tensor on the device; on a CPU the very same memory."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def read_back(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Results of a step on the host: the only place where a step waits for the device.

    All copies are queued first, so one wait serves them all.
    """
    if tensors[0].device.type != "cuda":
        return tensors
    on_host = tuple(torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors)
    for target, source in zip(on_host, tensors, strict=True):
        target.copy_(source, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()
    copied.synchronize()
    return on_host
