"""How fast a workload could be at the ceilings of the machine: its bytes at the memory's speed, its arithmetic at the
cores', whichever is slower, step by step.

A step of all running requests reads every weight once and the keys and values of their contexts; it multiplies, for
each of its tokens, twice as often as there are weights (a multiplication and an addition), plus the attention. Nothing
is counted for what a step could do without: activations, norms, sampling. (Williams, Waterman, Patterson: "Roofline",
2009.)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from engine.bench.peers.protocol import Request


class ModelShape(NamedTuple):
    """The sizes of a Llama-shaped decoder."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int

    @classmethod
    def of_folder(cls, folder: Path) -> ModelShape:
        """Out of the `config.json` of a model in Hugging Face format."""
        config = json.loads((folder / "config.json").read_text())
        heads = config["num_attention_heads"]
        return cls(
            num_layers=config["num_hidden_layers"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_attention_heads=heads,
            num_kv_heads=config.get("num_key_value_heads", heads),
            head_size=config.get("head_dim") or config["hidden_size"] // heads,
            vocab_size=config["vocab_size"],
        )

    @property
    def layer_weights(self) -> int:
        """Weights of the matrices of all layers: query, key, value, output; gate, up, down."""
        attention = self.head_size * (2 * self.num_attention_heads + 2 * self.num_kv_heads)
        return self.num_layers * self.hidden_size * (attention + 3 * self.intermediate_size)

    @property
    def head_weights(self) -> int:
        """Weights of the output head; the input embedding, of which a step reads single rows, is not counted."""
        return self.hidden_size * self.vocab_size

    @property
    def kv_values_per_token(self) -> int:
        """Elements of the keys and values of one token."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size

    def attention_flops(self, context: int) -> int:
        """For one query that sees so many tokens: their scores, and the sum of their values."""
        return 4 * self.num_layers * self.num_attention_heads * self.head_size * context


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
