"""vLLM's control plane under the workloads of `control_plane.py`. Runs under a Python that has vLLM, not this engine.

`PYTHON vllm_control_plane.py` reads workloads from stdin, one JSON object a line, and answers each with a line of
JSON: microseconds a step of `Scheduler.schedule()` + `update_from_output()`, by the wall clock and of this thread.
The scheduler is built as vLLM's engine core builds it, without workers; the forward pass is a fixed token.
Written for vLLM 0.32.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK_SIZE = 16
TOKEN = 7

#: A model is only named to the configuration: no weights are read.
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 1 << 20,
    "max_position_embeddings": 1 << 20,
}


class Peer:
    """vLLM's scheduler with the requests of one workload."""

    def __init__(self, model: str, num_requests: int, prompt_tokens: int, token_budget: int, output_room: int) -> None:
        max_model_len = prompt_tokens + output_room
        config = _config(model, num_requests, token_budget, max_model_len)
        num_blocks = num_requests * -(-max_model_len // BLOCK_SIZE) + 1
        config.cache_config.num_gpu_blocks = num_blocks
        spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=64, dtype=torch.float32)
        kv_cache = KVCacheConfig(
            num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        )
        self.scheduler = Scheduler(config, kv_cache, StructuredOutputManager(config), block_size=BLOCK_SIZE)
        hash_function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_function)
        self.block_hasher = get_request_block_hasher(BLOCK_SIZE, hash_function)
        self.unfinished_prompts = set[str]()

    def add(self, number: int, prompt_tokens: int) -> None:
        """Let a request join."""
        request = Request(
            request_id=str(number),
            prompt_token_ids=list(range(number * prompt_tokens, (number + 1) * prompt_tokens)),
            sampling_params=SamplingParams(max_tokens=1 << 20, ignore_eos=True),
            pooling_params=None,
            block_hasher=self.block_hasher,
        )
        self.scheduler.add_request(request)
        self.unfinished_prompts.add(request.request_id)

    def step(self) -> tuple[float, float]:
        """Schedule and update once. Returns seconds by the wall clock, and of this thread."""
        wall, thread = time.perf_counter(), time.thread_time()
        plan = self.scheduler.schedule()
        scheduled_wall, scheduled_thread = time.perf_counter() - wall, time.thread_time() - thread
        output = self._forward(plan)
        wall, thread = time.perf_counter(), time.thread_time()
        self.scheduler.update_from_output(plan, output)
        return scheduled_wall + time.perf_counter() - wall, scheduled_thread + time.thread_time() - thread

    def _forward(self, plan: Any) -> ModelRunnerOutput:
        ids = list(plan.num_scheduled_tokens)
        requests = self.scheduler.requests
        done = [requests[name].num_computed_tokens >= requests[name].num_tokens for name in ids]
        self.unfinished_prompts.difference_update(name for name, complete in zip(ids, done, strict=True) if complete)
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={name: index for index, name in enumerate(ids)},
            sampled_token_ids=[[TOKEN] if complete else [] for complete in done],
        )


def measure(model: str, workload: dict[str, Any]) -> dict[str, Any]:
    """Every step's microseconds, of the prompts or of the decodes after them; and those of adding a request."""
    num_requests, prompt_tokens = workload["num_requests"], workload["prompt_tokens"]
    peer = Peer(model, num_requests, prompt_tokens, workload["token_budget"], workload["output_room"])
    wall, thread = time.perf_counter(), time.thread_time()
    for number in range(num_requests):
        peer.add(number, prompt_tokens)
    added = (time.perf_counter() - wall, time.thread_time() - thread)
    gc.collect()
    gc.freeze()
    prompts = []
    while peer.unfinished_prompts:
        prompts.append(peer.step())
    steps = [peer.step() for _ in range(workload["num_decode_steps"])] or prompts
    gc.unfreeze()
    return {
        "wall": [wall * 1e6 for wall, _ in steps],
        "thread": [thread * 1e6 for _, thread in steps],
        "added": [seconds * 1e6 / num_requests for seconds in added],
    }


def _config(model: str, num_requests: int, token_budget: int, max_model_len: int) -> VllmConfig:
    return VllmConfig(
        model_config=ModelConfig(
            model=model, skip_tokenizer_init=True, dtype="float32", max_model_len=max_model_len, enforce_eager=True
        ),
        cache_config=CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True),
        scheduler_config=SchedulerConfig(
            max_num_seqs=num_requests,
            max_num_batched_tokens=token_budget,
            max_model_len=max_model_len,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            async_scheduling=False,
        ),
        device_config=DeviceConfig(device="cpu"),
    )


def main() -> None:
    """Answer workloads until stdin ends."""
    with tempfile.TemporaryDirectory() as model:
        (Path(model) / "config.json").write_text(json.dumps(MODEL))
        for line in sys.stdin:
            print(json.dumps(measure(model, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
