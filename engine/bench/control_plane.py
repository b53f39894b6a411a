"""Microseconds that the control plane takes for a step, with no model behind it."""

from __future__ import annotations

import statistics
import time

from engine.config import EngineConfig, KVCacheConfig, KVCacheGroup
from engine.core.engine_core import EngineCore
from engine.core.kv_cache.block_hash import none_hash_for
from engine.core.messages import EngineCoreRequest, ModelRunnerOutput
from engine.sampling_params import SamplingParams

MAX_MODEL_LEN = 2048


def microseconds_per_step(num_decodes: int, num_steps: int = 300, prompt_tokens: int = 128) -> float:
    """Median of `schedule()` + `update()` with so many running decodes, prefix caching on."""
    core = _running_core(num_decodes, prompt_tokens)
    samples = []
    for _ in range(num_steps):
        started = time.perf_counter()
        plan = core.schedule()
        planned = time.perf_counter()
        output = ModelRunnerOutput(
            step=plan.step,
            serials=[row.serial for row in plan.rows],
            sampled_token_ids=[[7] for _ in plan.rows],
        )
        answered = time.perf_counter()
        core.update(plan.step, output)
        samples.append(planned - started + time.perf_counter() - answered)
    return statistics.median(samples) * 1e6


def _running_core(num_decodes: int, prompt_tokens: int) -> EngineCore:
    config = EngineConfig.from_args("no-model", max_num_batched_tokens=1 << 20, max_num_seqs=num_decodes)
    kv_cache = KVCacheConfig(
        num_gpu_blocks=num_decodes * MAX_MODEL_LEN // 16 + 1,
        block_size=16,
        groups=(KVCacheGroup(num_layers=1, block_bytes=1),),
        none_hash=none_hash_for("sha256"),
    )
    core = EngineCore(config, kv_cache, MAX_MODEL_LEN)
    for number in range(num_decodes):
        core.add(
            EngineCoreRequest(
                request_id=str(number),
                prompt_token_ids=tuple(range(number, number + prompt_tokens)),
                sampling_params=SamplingParams(max_tokens=None, seed=0),
            )
        )
    plan = core.schedule()
    serials = [row.serial for row in plan.rows]
    core.update(plan.step, ModelRunnerOutput(step=plan.step, serials=serials, sampled_token_ids=[[7]] * num_decodes))
    return core
