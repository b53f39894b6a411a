"""The profiling pass: a forward pass over made-up tokens that shows how much memory a step takes beside the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from engine.attention.backend import AttentionBackend
from engine.config import SchedulerConfig
from engine.core.messages import NewRequestData, ScheduledRow, SchedulerOutput
from engine.models.causal_lm import CausalLM
from engine.sampling_params import SamplingParams
from engine.worker.cuda_graphs import DecodeGraphs
from engine.worker.input_batch import InputBatch
from engine.worker.input_buffers import InputBuffers
from engine.worker.kv_cache import CacheShape, bind_kv_cache
from engine.worker.memory import device_memory, peak_bytes
from engine.worker.model_runner import ModelRunner

#: A whole step of a real model takes a CPU seconds. What it allocates grows in proportion to its tokens, so a part of
#: one is measured and scaled up.
CPU_PROFILE_TOKENS = 64
#: A first, smaller pass lets libraries allocate the buffers that they keep: these do not grow with the tokens.
WARM_UP_TOKENS = 8


def profile_activations(
    decoder: CausalLM,
    limits: SchedulerConfig,
    max_model_len: int,
    shape: CacheShape,
    backend: AttentionBackend[Any],
    buffers: InputBuffers | None,
) -> int:
    """Bytes that a step of `max_num_batched_tokens` tokens and `max_num_seqs` sampled rows takes at its peak.

    Binds a small KV cache for the time being; the caller binds the real one afterwards.
    """
    device = decoder.device
    budget = limits.max_num_batched_tokens
    num_tokens = min(budget, CPU_PROFILE_TOKENS) if device.type == "cpu" else budget
    num_seqs = max(1, min(num_tokens, limits.max_num_seqs * num_tokens // budget))

    _dummy_step(decoder, _share_out(min(num_tokens, WARM_UP_TOKENS), 1, max_model_len), shape, backend, buffers)()
    step = _dummy_step(decoder, _share_out(num_tokens, num_seqs, max_model_len), shape, backend, buffers)
    return peak_bytes(step, device) * budget // num_tokens


def profile_graphs(make_graphs: Callable[[], DecodeGraphs], sizes: Sequence[int], device: torch.device) -> int:
    """Bytes that CUDA graphs of so many sizes will take, from capturing the two largest.

    Runs over the KV cache of `profile_activations`: what is captured is padding, which touches none of it.
    """
    torch.cuda.empty_cache()
    available = [device_memory(device).available]
    graphs = make_graphs()
    for size in sorted(sizes, reverse=True)[:2]:
        graphs.capture([size])
        torch.cuda.empty_cache()  # of what the run before the recording took
        available.append(device_memory(device).available)
    return expected_graph_bytes([before - after for before, after in pairwise(available)], len(sizes))


def expected_graph_bytes(taken: Sequence[int], num_graphs: int) -> int:
    """Bytes of all graphs: the first takes the pool that they share, each later one what the second took.

    Args:
        taken: bytes of the first graph and, if there are several, of the second.
        num_graphs: how many there will be.
    """
    first, *others = (max(0, each) for each in taken)
    return first + sum(others[:1]) * (num_graphs - 1)


def _dummy_step(
    decoder: CausalLM,
    lengths: list[int],
    shape: CacheShape,
    backend: AttentionBackend[Any],
    buffers: InputBuffers | None,
) -> Callable[[], None]:
    """A step in which every request is new and sampled at random, over a KV cache just large enough."""
    params = SamplingParams(temperature=1.0, top_p=0.9, top_k=50, seed=0)
    rows, next_block, num_groups = [], 1, len(shape.groups)
    for serial, length in enumerate(lengths):
        num_blocks = -(-length // shape.block_size)
        tables = tuple(
            list(range(next_block + group * num_blocks, next_block + (group + 1) * num_blocks))
            for group in range(num_groups)
        )
        rows.append(
            ScheduledRow(
                serial=serial,
                request_id=f"profile-{serial}",
                num_scheduled_tokens=length,
                num_computed_tokens=0,
                block_ids=tables,
                new=NewRequestData(token_ids=[0] * length, num_prompt_tokens=length, sampling_params=params),
            )
        )
        next_block += num_groups * num_blocks
    bind_kv_cache(decoder, shape, next_block, backend)
    vocab_size = decoder.architecture.vocab_size
    batch = InputBatch(len(lengths), max(lengths), shape.block_size, vocab_size, num_groups=num_groups)
    runner = ModelRunner(decoder, batch, backend, buffers)

    def step() -> None:
        runner.execute_model(SchedulerOutput(step=0, rows=rows, released=[]))
        runner.sample_tokens()

    return step


def _share_out(num_tokens: int, num_seqs: int, max_model_len: int) -> list[int]:
    """Lengths of requests: as many as will be sampled, more only if these cannot hold the tokens."""
    num_seqs = max(num_seqs, -(-num_tokens // max_model_len))
    return [len(part) for part in np.array_split(np.arange(num_tokens), num_seqs)]
