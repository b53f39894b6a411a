"""The profiling pass: a forward pass over made-up tokens that shows how much memory a step takes beside the weights."""

from __future__ import annotations

import numpy as np
import torch

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
CPU_PROFILE_TOKENS = 256


def profile_activations(decoder: Decoder, limits: SchedulerConfig, max_model_len: int, shape: CacheShape) -> int:
    """Bytes that a step of `max_num_batched_tokens` tokens and `max_num_seqs` sampled rows takes at its peak.

    Binds a small KV cache for the time being; the caller binds the real one afterwards.
    """
    device = decoder.embed_tokens.device
    budget = limits.max_num_batched_tokens
    num_tokens = min(budget, CPU_PROFILE_TOKENS) if device.type == "cpu" else budget
    num_seqs = max(1, min(num_tokens, limits.max_num_seqs * num_tokens // budget))
    lengths = _share_out(num_tokens, num_seqs, max_model_len)

    batch = InputBatch(len(lengths), max(lengths), shape.block_size, decoder.architecture.vocab_size)
    runner = ModelRunner(decoder, batch)
    plan, num_blocks = _dummy_step(lengths, shape.block_size)
    bind_kv_cache(decoder, shape, num_blocks)

    def step() -> None:
        runner.execute_model(plan)
        runner.sample_tokens()

    return peak_bytes(step, device) * budget // num_tokens


def _share_out(num_tokens: int, num_seqs: int, max_model_len: int) -> list[int]:
    """Lengths of requests: as many as will be sampled, more only if these cannot hold the tokens."""
    num_seqs = max(num_seqs, -(-num_tokens // max_model_len))
    return [len(part) for part in np.array_split(np.arange(num_tokens), num_seqs)]


def _dummy_step(lengths: list[int], block_size: int) -> tuple[SchedulerOutput, int]:
    """A step in which every request is new and sampled at random, and the blocks that its cache needs."""
    params = SamplingParams(temperature=1.0, top_p=0.9, top_k=50, seed=0)
    rows, next_block = [], 1
    for serial, length in enumerate(lengths):
        num_blocks = -(-length // block_size)
        rows.append(
            ScheduledRow(
                serial=serial,
                request_id=f"profile-{serial}",
                num_scheduled_tokens=length,
                num_computed_tokens=0,
                block_ids=(list(range(next_block, next_block + num_blocks)),),
                new=NewRequestData(token_ids=[0] * length, num_prompt_tokens=length, sampling_params=params),
            )
        )
        next_block += num_blocks
    return SchedulerOutput(step=0, rows=rows, released=[]), next_block
