"""Roofline: each step as a point, by how much arithmetic it does per byte and how fast it did it.

The ceilings are those of a device of `sim.cost_model`, the counts follow from the model's facts in the header; the time
is the recorded one. (Williams, Waterman, Patterson: "Roofline", 2009.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

from engine.models.model_shape import ModelShape
from engine.trace import events as ev
from sim.cost_model.composition import StepComposition
from sim.cost_model.devices import RooflineDevice, recorded_device
from sim.cost_model.recorded_steps import composition_of
from sim.cost_model.roofline import RooflineModel
from sim.timeline import StepView, Timeline
from viz.figures.chart import at, chart, line
from viz.figures.html import Html, el, join
from viz.figures.parts import Selection, empty, panel

_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
#: Points drawn; of more steps, every so many.
_POINTS = 400


class Point(NamedTuple):
    """A step on the plane."""

    step: int
    intensity: float
    """FLOPs per byte read."""
    flops_per_second: float
    composition: StepComposition


def roofline(timeline: Timeline, view: StepView, selection: Selection) -> Html:
    """Draw executed steps under the ceilings of the device, the current one marked."""
    title, words = "Roofline", "further right: more arithmetic for every byte read; higher: faster"
    if not timeline.header.model.intermediate_size:
        return panel("roofline", title, words, empty("The trace does not tell the sizes of its model."))
    points = list(roofline_points(timeline))
    current = roofline_point(timeline, view.step)
    if current is not None and current not in points:
        points.append(current)
    if not points:
        return panel("roofline", title, words, empty("No step was executed yet: there is no time to draw."))
    name = _device_name(timeline)
    device = recorded_device(timeline.header.device, name)
    if device is None:
        unknown = empty(f"What {name or timeline.header.device} can do at best is not known here, so it has no roof.")
        return panel("roofline", title, words, _plane(points, None, current), unknown)
    saturation = _saturation(timeline, device)
    return panel(
        "roofline",
        title,
        words,
        _plane(points, device, current),
        el("p", "more", _ceilings(device, saturation), data_saturation=f"{saturation:.1f}"),
        _words(current, saturation) if current else empty("This step ran nothing, so it has no point."),
        aside=join([*_KEY, el("span", "", f"ceilings of: {device.name}", data_tip=device.source)]),
    )


#: What the colours of the points say.
_KEY = (
    el("i", "key-dot"), "decodes only", el("i", "key-dot prefill"), "with pieces of prompts ·",
)  # fmt: skip


def _device_name(timeline: Timeline) -> str:
    """What the driver of the device calls it; empty if the trace does not tell."""
    startup = takewhile(lambda event: event.step == 0 and not isinstance(event, ev.RequestAdded), timeline.events)
    return next((event.device_name for event in startup if isinstance(event, ev.DeviceInitialized)), "")


def _saturation(timeline: Timeline, device: RooflineDevice) -> float:
    shape = ModelShape.of_facts(timeline.header.model)
    return RooflineModel(shape, device, _dtype_bytes(timeline)).saturation_tokens


def _dtype_bytes(timeline: Timeline) -> int:
    return _DTYPE_BYTES.get(timeline.header.model.dtype, 2)


@lru_cache(maxsize=8)
def roofline_points(timeline: Timeline) -> tuple[Point, ...]:
    """The executed steps of a run, of many every so many: each has its events decoded, once per trace."""
    steps = timeline.steps[:: -(-len(timeline.steps) // _POINTS) or 1]
    points = (roofline_point(timeline, step) for step in steps)
    return tuple(point for point in points if point is not None)


def roofline_point(timeline: Timeline, step: int) -> Point | None:
    """What a step computed, read and took; None if it ran nothing."""
    composition = composition_of(step, timeline.step(step).events)
    if composition is None:
        return None
    duration_ns = timeline.facts_of(step).duration_ns
    if duration_ns <= 0:
        return None
    shape = ModelShape.of_facts(timeline.header.model)
    flops = 2 * shape.layer_weights * composition.num_tokens + shape.attention_flops(composition.pairs)
    flops += 2 * shape.head_weights * composition.num_logits
    values = shape.layer_weights + shape.kv_values_per_token * composition.num_kv_tokens
    values += shape.head_weights * (composition.num_logits > 0)
    rate = flops / duration_ns * 1e9
    return Point(step, flops / (values * _dtype_bytes(timeline)), rate, composition)


def _plane(points: Sequence[Point], device: RooflineDevice | None, current: Point | None) -> Html:
    ridge = device.flops_per_second / device.bytes_per_second if device else 1.0
    highest = max(device.flops_per_second if device else 1.0, *(point.flops_per_second for point in points))
    left = math.floor(math.log10(min(point.intensity for point in points)))
    right = math.ceil(math.log10(max(ridge * 3, *(point.intensity for point in points), 10)))
    low = math.floor(math.log10(min(point.flops_per_second for point in points)))
    high = math.ceil(math.log10(highest))

    def place(intensity: float, rate: float) -> tuple[float, float]:
        x = 100 * (math.log10(intensity) - left) / (right - left)
        return x, 100 * (math.log10(rate) - low) / (high - low)

    dots = [_dot(point, place(point.intensity, point.flops_per_second), "") for point in points if point != current]
    if current:
        dots.append(_dot(current, place(current.intensity, current.flops_per_second), " current"))
    roof = []
    if device:
        corners = [(10.0**left, 10.0**left * device.bytes_per_second), (ridge, device.flops_per_second)]
        corners.append((10.0**right, device.flops_per_second))
        bound = f"left:{place(ridge, 1.0)[0]:.2f}%"
        roof.append(el("span", "ridge", style=bound, data_tip="ridge: bound by memory on its left"))
        roof.append(line([place(*corner) for corner in corners], "roof"))
    ticks = [(100 * (power - low) / (high - low), _flops(10.0**power)) for power in range(low, high + 1, 2)]
    ends = (f"{10.0**left:g}", f"{10.0**right:g}")
    return chart("FLOPs per byte", "FLOP/s", ticks, ends, *roof, *dots)


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
