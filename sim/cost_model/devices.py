"""Devices by name: what they can do at best, and what a step gets of it.

Peaks are the vendors' own figures, dense (without sparsity), in 16 bits with float32 sums. What a step gets of them
is an assumption, the same for all GPUs: 80 % of the bandwidth, 65 % of the arithmetic, the host's own time and that of
launching kernels. Whoever has recorded a run on the device does better with `orrery calibrate`.
"""

from __future__ import annotations

import msgspec

GIB = 1 << 30


class RooflineDevice(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="roofline"):
    """A device known by its ceilings."""

    name: str
    memory_bytes: int
    """Memory for weights, activations and the KV cache."""
    bytes_per_second: float
    """Peak bandwidth of that memory."""
    flops_per_second: float
    """Peak of a matrix product, in the dtype of the weights; a multiplication and an addition are two."""
    memory_efficiency: float = 0.80
    """Share of the bandwidth that a step reaches."""
    compute_efficiency: float = 0.65
    """Share of the arithmetic that a step reaches."""
    step_overhead_ns: int = 300_000
    """Of every step: planning it, its inputs, sampling, its outputs, as far as the device waits for them."""
    launch_ns: int = 5_000
    """Of one kernel that is launched by itself; a captured graph launches all of its at once."""
    kernels_per_layer: int = 9
    source: str = ""


_ASSUMED = "80 % and 65 % of the peaks are assumptions"

DEVICES = {
    device.name: device
    for device in (
        RooflineDevice(
            name="a100",
            memory_bytes=80 * GIB,
            bytes_per_second=2.039e12,
            flops_per_second=312e12,
            source=f"NVIDIA A100 80GB SXM data sheet: 2,039 GB/s, 312 TFLOPS BF16; {_ASSUMED}",
        ),
        RooflineDevice(
            name="h100",
            memory_bytes=80 * GIB,
            bytes_per_second=3.35e12,
            flops_per_second=989.4e12,
            source=f"NVIDIA H100 SXM data sheet: 3.35 TB/s, 989.4 TFLOPS BF16 (1,979 with sparsity); {_ASSUMED}",
        ),
        RooflineDevice(
            name="h200",
            memory_bytes=141 * 10**9,
            bytes_per_second=4.8e12,
            flops_per_second=989.4e12,
            source=f"NVIDIA H200 SXM data sheet: 141 GB, 4.8 TB/s, 989.4 TFLOPS BF16 (1,979 with sparsity); {_ASSUMED}",
        ),
        RooflineDevice(
            name="l4",
            memory_bytes=24 * GIB,
            bytes_per_second=300e9,
            flops_per_second=121e12,
            source=f"NVIDIA L4 data sheet: 24 GB, 300 GB/s, 121 TFLOPS BF16 (242 with sparsity); {_ASSUMED}",
        ),
        RooflineDevice(
            name="rtx4090",
            memory_bytes=24 * GIB,
            bytes_per_second=1.008e12,
            flops_per_second=165.2e12,
            source="NVIDIA Ada GPU architecture white paper: 24 GB, 1,008 GB/s, 165.2 TFLOPS BF16 with FP32 sums; "
            f"{_ASSUMED}",
        ),
        RooflineDevice(
            name="cpu",
            memory_bytes=16 * GIB,
            bytes_per_second=30e9,
            flops_per_second=185e9,
            memory_efficiency=0.95,
            compute_efficiency=0.8,
            step_overhead_ns=700_000,
            launch_ns=0,
            source="two cores of an AVX2 server processor, measured by `make bench` (docs/benchmarks.md): 30 GB/s "
            "read, 185 GFLOP/s in float32, 0.7 ms of a step outside the model",
        ),
    )
}

#: What the makers' drivers call them: other variants of a name have other ceilings.
_DRIVER_NAMES = {
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H200": "h200",
    "NVIDIA L4": "l4",
    "NVIDIA GeForce RTX 4090": "rtx4090",
}


def recorded_device(device: str, device_name: str) -> RooflineDevice | None:
    """The device of a recording; None if its ceilings are not known.

    Args:
        device: as the header of a trace names it: `cpu`, `cuda:0`, `simulated h100`.
        device_name: what its driver calls it.
    """
    name = _DRIVER_NAMES.get(device_name, device.removeprefix("simulated "))
    return DEVICES.get(name)
