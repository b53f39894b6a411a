"""How many KV cache blocks fit on a device beside the weights: what simulators are most often wrong about."""

from __future__ import annotations

from engine.errors import ConfigError
from engine.models.model_shape import ModelShape
from sim.cost_model.devices import GIB, RooflineDevice

#: The driver's context and the libraries' own workspaces on a GPU; an assumption.
CONTEXT_BYTES = GIB


def activation_bytes(shape: ModelShape, dtype_bytes: int, max_num_batched_tokens: int, max_num_seqs: int) -> int:
    """What the largest step takes beside weights and cache: an estimate of its peak.

    Per token the residual stream, its normed copy, queries, keys and values, and the two halves of the MLP with their
    product; per sampled row its logits in float32, twice.
    """
    qkv = shape.head_size * (shape.num_attention_heads + 2 * shape.num_kv_heads)
    per_token = 2 * shape.hidden_size + max(qkv + shape.hidden_size, 3 * shape.intermediate_size)
    return max_num_batched_tokens * per_token * dtype_bytes + 2 * max_num_seqs * shape.vocab_size * 4


def num_blocks_that_fit(
    shape: ModelShape,
    device: RooflineDevice,
    *,
    dtype_bytes: int,
    block_size: int,
    gpu_memory_utilization: float,
    max_num_batched_tokens: int,
    max_num_seqs: int,
) -> int:
    """Blocks, the null block included.

    Args:
        shape: of the model.
        device: whose memory it is.
        dtype_bytes: of an element of weights and cache.
        block_size: tokens of a block.
        gpu_memory_utilization: share of the memory that the engine may take.
        max_num_batched_tokens, max_num_seqs: the largest step.

    Raises:
        ConfigError: not even one block fits.
    """
    weights = shape.num_parameters * dtype_bytes
    working = activation_bytes(shape, dtype_bytes, max_num_batched_tokens, max_num_seqs) + CONTEXT_BYTES
    left = int(device.memory_bytes * gpu_memory_utilization) - weights - working
    block_bytes = block_size * shape.kv_values_per_token * dtype_bytes
    if left < block_bytes:
        raise ConfigError(
            f"The model does not fit on {device.name}: of {device.memory_bytes * gpu_memory_utilization / GIB:.1f} GiB "
            f"its weights take {weights / GIB:.1f} and a step {working / GIB:.1f}; choose a device with more memory."
        )
    return left // block_bytes
