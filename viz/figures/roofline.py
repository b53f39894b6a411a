"""Roofline: each step as a point, by how much arithmetic it does per byte and how fast it did it.

The ceilings are those of a device of `sim.cost_model`, the counts follow from the model's facts in the header; the time
is the recorded one. (Williams, Waterman, Patterson: "Roofline", 2009.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from engine.models.model_shape import ModelShape
from sim.cost_model.composition import StepComposition
from sim.cost_model.devices import DEVICES, RooflineDevice
from sim.cost_model.recorded_steps import recorded_steps
from sim.cost_model.roofline import RooflineModel
from sim.timeline import StepView, Timeline
from viz.figures.chart import at, chart, line
from viz.figures.html import Html, el
from viz.figures.parts import Selection, empty, panel

_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
#: Points drawn; of more steps, every so many.
_POINTS = 600


class Point(NamedTuple):
    """A step on the plane."""

    step: int
    intensity: float
    """FLOPs per byte read."""
    flops_per_second: float
    composition: StepComposition


def roofline(timeline: Timeline, view: StepView, selection: Selection) -> Html:
    """Draw every executed step under the ceilings of the device, the current one marked."""
    title, words = "Roofline", "further right: more arithmetic for every byte read; higher: faster"
    shape = _shape(timeline)
    if shape is None:
        return panel("roofline", title, words, empty("The trace does not tell the sizes of its model."))
    device = _device(timeline.header.device)
    points = roofline_points(timeline, shape)
    if not points:
        return panel("roofline", title, words, empty("No step was executed yet: there is no time to draw."))
    dtype_bytes = _DTYPE_BYTES.get(timeline.header.model.dtype, 2)
    saturation = RooflineModel(shape, device, dtype_bytes).saturation_tokens
    current = next((point for point in points if point.step == view.step), None)
    return panel(
        "roofline",
        title,
        words,
        _plane(points, device, current),
        el("p", "more", _ceilings(device, saturation), data_saturation=f"{saturation:.1f}"),
        _words(current, saturation) if current else empty("This step ran nothing, so it has no point."),
        aside=f"ceilings of: {device.name}",
    )


def _shape(timeline: Timeline) -> ModelShape | None:
    """The intermediate size is not among the model's facts; it follows from the number of its parameters."""
    model = timeline.header.model
    if not model.num_parameters:
        return None
    plain = ModelShape(
        model.num_layers, model.hidden_size, 0, model.num_attention_heads, model.num_kv_heads, model.head_size,
        model.vocab_size,
    )  # fmt: skip
    per_unit = 3 * model.num_layers * model.hidden_size
    return plain._replace(intermediate_size=max(0, round((model.num_parameters - plain.num_parameters) / per_unit)))


def _device(name: str) -> RooflineDevice:
    """The device the trace was recorded on; a GPU that the header does not tell more of is drawn as an H100."""
    return DEVICES["cpu" if name.startswith("cpu") else "h100"]


def roofline_points(timeline: Timeline, shape: ModelShape) -> list[Point]:
    """Every executed step with what it computed, read and took."""
    dtype_bytes = _DTYPE_BYTES.get(timeline.header.model.dtype, 2)
    points = []
    for recorded in recorded_steps(timeline.events):
        step = recorded.composition
        flops = 2 * shape.layer_weights * step.num_tokens + shape.attention_flops(step.pairs)
        flops += 2 * shape.head_weights * step.num_logits
        values = shape.layer_weights + shape.kv_values_per_token * step.num_kv_tokens
        values += shape.head_weights * (step.num_logits > 0)
        if recorded.duration_ns > 0:
            rate = flops / recorded.duration_ns * 1e9
            points.append(Point(recorded.step, flops / (values * dtype_bytes), rate, step))
    return points


def _plane(points: Sequence[Point], device: RooflineDevice, current: Point | None) -> Html:
    ridge = device.flops_per_second / device.bytes_per_second
    left = math.floor(math.log10(min(point.intensity for point in points)))
    right = math.ceil(math.log10(max(ridge * 3, *(point.intensity for point in points), 10)))
    low = math.floor(math.log10(min(point.flops_per_second for point in points)))
    high = math.ceil(math.log10(max(device.flops_per_second, *(point.flops_per_second for point in points))))

    def place(intensity: float, rate: float) -> tuple[float, float]:
        x = 100 * (math.log10(intensity) - left) / (right - left)
        return x, 100 * (math.log10(rate) - low) / (high - low)

    roof = [(10.0**left, 10.0**left * device.bytes_per_second), (ridge, device.flops_per_second)]
    roof.append((10.0**right, device.flops_per_second))
    shown = points[:: -(-len(points) // _POINTS)]
    dots = [_dot(point, place(point.intensity, point.flops_per_second), "") for point in shown if point != current]
    if current:
        dots.append(_dot(current, place(current.intensity, current.flops_per_second), " current"))
    knee = el("span", "ridge", style=f"left:{place(ridge, 1.0)[0]:.2f}%", data_tip="ridge: bound by memory on its left")
    ticks = [(100 * (power - low) / (high - low), _flops(10.0**power)) for power in range(low, high + 1, 2)]
    ends = (f"{10.0**left:g}", f"{10.0**right:g}")
    return chart(
        "FLOPs per byte", "FLOP/s", ticks, ends, knee, line([place(*corner) for corner in roof], "roof"), *dots
    )


def _dot(point: Point, where: tuple[float, float], css: str) -> Html:
    step = point.composition
    return el(
        "button",
        f"dot {step.phase}{css}",
        style=at(*where),
        data_act=f"step:{point.step}",
        data_point=point.step,
        data_current=css != "",
        data_tip=f"step {point.step}: {step.num_tokens} tokens, {point.intensity:.1f} FLOPs per byte, "
        f"{_flops(point.flops_per_second)}",
        aria_label=f"step {point.step}",
    )


def _flops(rate: float) -> str:
    """`12 GFLOP/s`."""
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{rate / size:.3g} {unit}FLOP/s"
    return f"{rate:.3g} FLOP/s"


def _ceilings(device: RooflineDevice, saturation: float) -> str:
    ridge = device.flops_per_second / device.bytes_per_second
    return (
        f"At most {_flops(device.flops_per_second)} and {device.bytes_per_second / 1e9:,.0f} GB/s: the ridge is at "
        f"{ridge:.1f} FLOPs per byte. From {saturation:.0f} tokens on, a step is bound by arithmetic: the saturation "
        "batch."
    )


def _words(current: Point, saturation: float) -> Html:
    tokens = current.composition.num_tokens
    bound = "arithmetic" if tokens >= saturation else "reading the weights"
    words = f"Step {current.step} ran {tokens} tokens: its layers are bound by {bound}."
    return el("p", "", words)
