"""Time from bytes and arithmetic: every part of a step takes as long as the slower of the two at the device's ceilings.

| part | bytes | FLOPs |
| --- | --- | --- |
| layers | their weights, once | 2 × weights × tokens |
| attention | keys and values of every context | 4 × layers × heads × head size × pairs |
| output head | its weights, once if anything is sampled | 2 × weights × rows of logits |

Decodes and pieces of prompts share one reading of the weights, so a mixed step is not the sum of two steps. What
padding adds runs through the layers like any token. (Williams, Waterman, Patterson: "Roofline", 2009.)
"""

from __future__ import annotations

from bisect import bisect_left

from engine.models.model_shape import ModelShape
from sim.cost_model.composition import StepComposition
from sim.cost_model.cost_model import StepTime
from sim.cost_model.devices import RooflineDevice


class RooflineModel:
    """A model on a device that is known by its ceilings.

    Args:
        shape: of the model.
        device: where it runs.
        dtype_bytes: of an element of weights and cache.
        captured_sizes: of the decodes that run as captured graphs, ascending; a step of more tokens, or with a piece of
            a prompt in it, launches its kernels one by one.
    """

    def __init__(
        self, shape: ModelShape, device: RooflineDevice, dtype_bytes: int = 2, captured_sizes: tuple[int, ...] = ()
    ) -> None:
        self.shape = shape
        self.device = device
        self.captured_sizes = captured_sizes
        read = 1e9 / (device.bytes_per_second * device.memory_efficiency)
        compute = 1e9 / (device.flops_per_second * device.compute_efficiency)
        self._layer_read_ns = shape.layer_weights * dtype_bytes * read
        self._layer_ns_per_token = 2 * shape.layer_weights * compute
        self._kv_ns_per_token = shape.kv_values_per_token * dtype_bytes * read
        self._ns_per_pair = shape.attention_flops(1) * compute
        self._head_read_ns = shape.head_weights * dtype_bytes * read
        self._head_ns_per_row = 2 * shape.head_weights * compute
        self._launch_ns = device.launch_ns * device.kernels_per_layer * shape.num_layers

    @property
    def saturation_tokens(self) -> float:
        """Tokens of a step from which on its layers are bound by arithmetic, no longer by reading the weights."""
        return self._layer_read_ns / self._layer_ns_per_token

    def step_ns(self, step: StepComposition) -> int:
        """See `CostModel`."""
        return self.step_time(step).total_ns

    def step_time(self, step: StepComposition) -> StepTime:
        """See `CostModel`."""
        padded = self._captured_size(step)
        tokens = padded or step.num_padded_tokens
        return StepTime(
            {
                "layers": max(self._layer_read_ns, self._layer_ns_per_token * tokens),
                "attention": max(self._kv_ns_per_token * step.num_kv_tokens, self._ns_per_pair * step.pairs),
                "output head": max(self._head_read_ns * (step.num_logits > 0), self._head_ns_per_row * step.num_logits),
                "overhead": self.device.step_overhead_ns + (0 if padded else self._launch_ns),
            }
        )

    def _captured_size(self, step: StepComposition) -> int:
        """Tokens of the captured graph that runs the step; 0 if none does."""
        if step.num_prefill_tokens or not self.captured_sizes or step.num_tokens > self.captured_sizes[-1]:
            return 0
        return self.captured_sizes[bisect_left(self.captured_sizes, step.num_tokens)]
