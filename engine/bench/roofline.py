"""How fast a workload could be at the ceilings of the machine: its bytes at the memory's speed, its arithmetic at the
cores', whichever is slower, step by step.

A step of all running requests reads every weight once and the keys and values of their contexts; it multiplies, for
each of its tokens, twice as often as there are weights (a multiplication and an addition), plus the attention. Nothing
is counted for what a step could do without: activations, norms, sampling. (Williams, Waterman, Patterson: "Roofline",
2009.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.bench.peers.protocol import Request
from engine.models.model_shape import ModelShape


class Ceilings(NamedTuple):
    """What the machine can do."""

    read_bytes_per_second: float
    flops_per_second: float
    """Of a large float32 matrix product."""


def least_seconds(shape: ModelShape, requests: Sequence[Request], bytes_per_weight: float, ceilings: Ceilings) -> float:
    """Seconds for requests that are given at once: one step for all prompts, then one for every further token.

    Args:
        shape: of the model.
        requests: the workload.
        bytes_per_weight: in memory; keys and values are taken to be as large.
        ceilings: of the machine.
    """
    weight_bytes = bytes_per_weight * (shape.layer_weights + shape.head_weights)
    kv_bytes = bytes_per_weight * shape.kv_values_per_token

    def step(tokens: int, logits: int, attention_flops: int, context: int) -> float:
        flops = 2 * (tokens * shape.layer_weights + logits * shape.head_weights) + attention_flops
        read = weight_bytes + kv_bytes * context
        return max(flops / ceilings.flops_per_second, read / ceilings.read_bytes_per_second)

    lengths = [len(request.prompt) for request in requests]
    # The query at position i sees i + 1 tokens.
    attention = shape.attention_flops(sum(length * (length + 1) // 2 for length in lengths))
    seconds = step(sum(lengths), len(requests), attention, 0)
    for generated in range(1, max(request.out for request in requests)):
        contexts = [len(request.prompt) + generated for request in requests if request.out > generated]
        context = sum(contexts)
        seconds += step(len(contexts), len(contexts), shape.attention_flops(context), context)
    return seconds
