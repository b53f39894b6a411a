"""The profiling pass: a forward pass over made-up tokens that shows how much memory a step takes beside the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from engine.attention.backend import AttentionBackend
from engine.config import SchedulerConfig
from engine.core.messages import NewRequestData, ScheduledRow, SchedulerOutput
from engine.models.decoder import Decoder
from engine.sampling_params import SamplingParams
from engine.worker.input_batch import InputBatch
from engine.worker.kv_cache import CacheShape, bind_kv_cache
from engine.worker.memory import peak_bytes
from engine.worker.model_runner import ModelRunner

#: A whole step of a real model takes a CPU seconds. What it allocates grows in proportion to its tokens, so a part of
#: one is measured and scaled up.
CPU_PROFILE_TOKENS = 64
#: A first, smaller pass lets libraries allocate the buffers that they keep: these do not grow with the tokens.
WARM_UP_TOKENS = 8


def profile_activations(
    decoder: Decoder, limits: SchedulerConfig, max_model_len: int, shape: CacheShape, backend: AttentionBackend[Any]
) -> int:
    """Bytes that a step of `max_num_batched_tokens` tokens and `max_num_seqs` sampled rows takes at its peak.

    Binds a small KV cache for the time being; the caller binds the real one afterwards.
    """
    device = decoder.embed_tokens.device
    budget = limits.max_num_batched_tokens
    num_tokens = min(budget, CPU_PROFILE_TOKENS) if device.type == "cpu" else budget
    num_seqs = max(1, min(num_tokens, limits.max_num_seqs * num_tokens // budget))

    _dummy_step(decoder, _share_out(min(num_tokens, WARM_UP_TOKENS), 1, max_model_len), shape, backend)()
    step = _dummy_step(decoder, _share_out(num_tokens, num_seqs, max_model_len), shape, backend)
    return peak_bytes(step, device) * budget // num_tokens


def _dummy_step(
    decoder: Decoder, lengths: list[int], shape: CacheShape, backend: AttentionBackend[Any]
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
    runner = ModelRunner(decoder, batch, backend)

    def step() -> None:
        runner.execute_model(SchedulerOutput(step=0, rows=rows, released=[]))
        runner.sample_tokens()

    return step


def _share_out(num_tokens: int, num_seqs: int, max_model_len: int) -> list[int]:
    """Lengths of requests: as many as will be sampled, more only if these cannot hold the tokens."""
    num_seqs = max(num_seqs, -(-num_tokens // max_model_len))
    return [len(part) for part in np.array_split(np.arange(num_tokens), num_seqs)]
