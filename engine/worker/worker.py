"""`Worker`: one device, one model. Three procedures make it ready: init device, load model, init KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from engine.attention.backend import AttentionBackend, AttentionSpec
from engine.attention.registry import make_backend
from engine.config import EngineConfig, KVCacheConfig, ModelFacts
from engine.core.kv_cache.block_hash import none_hash_for
from engine.models.architecture import read_architecture
from engine.models.decoder import Decoder
from engine.models.loading import load_weights
from engine.sample.logits_processors import LogitsProcessor
from engine.worker.input_batch import InputBatch
from engine.worker.kv_cache import CacheShape, bind_kv_cache, cache_budget, resolve_num_blocks
from engine.worker.memory import device_memory
from engine.worker.model_runner import ModelRunner
from engine.worker.placement import (
    require_memory,
    require_room_for_weights,
    resolve_device,
    resolve_dtype,
    resolve_max_model_len,
)
from engine.worker.profile import profile_activations


class Worker:
    """Owns the model, its KV cache and the runner.

    Args:
        config: the engine's configuration.
        model_path: folder of the model.
        logits_processors: custom ones.
    """

    def __init__(
        self, config: EngineConfig, model_path: Path, logits_processors: Sequence[LogitsProcessor] = ()
    ) -> None:
        self.config = config
        self.model_path = model_path
        self._logits_processors = logits_processors
        self.device: torch.device
        self.decoder: Decoder
        self.backend: AttentionBackend[Any]
        self.runner: ModelRunner
        self.max_model_len: int

    def init_device(self) -> None:
        """Choose the device and see that it has the memory that was promised.

        Raises:
            ConfigError: no such device, or too little of it is free.
        """
        self.device = resolve_device(self.config.model.device)
        require_memory(self.config, self.device)

    def load_model(self) -> ModelFacts:
        """Build the decoder and fill it from its checkpoint.

        Raises:
            ModelError: an unsupported or damaged model, or weights that do not fit.
            ConfigError: a dtype that the device lacks, an attention backend that cannot serve the model, or a
                max_model_len beyond the model's.
        """
        architecture = read_architecture(self.model_path)
        dtype = resolve_dtype(self.config.model.dtype, architecture.checkpoint_dtype, self.device)
        self.max_model_len = resolve_max_model_len(self.config.model.max_model_len, architecture)
        spec = AttentionSpec(
            num_heads=architecture.num_heads,
            num_kv_heads=architecture.num_kv_heads,
            head_size=architecture.head_size,
            block_size=self.config.cache.block_size,
            dtype=dtype,
            device=self.device,
        )
        self.backend = make_backend(self.config.execution.attention_backend, spec)
        with torch.device("meta"):
            num_parameters = Decoder(architecture, 1, dtype).num_parameters()
        require_room_for_weights(num_parameters, dtype, self.device)
        with torch.device(self.device):
            self.decoder = Decoder(architecture, self.max_model_len, dtype).eval()
        load_weights(self.decoder, self.model_path)
        return ModelFacts(
            name=self.config.model.model,
            architecture=architecture.name,
            num_layers=architecture.num_layers,
            hidden_size=architecture.hidden_size,
            num_attention_heads=architecture.num_heads,
            num_kv_heads=architecture.num_kv_heads,
            head_size=architecture.head_size,
            vocab_size=architecture.vocab_size,
            max_model_len=self.max_model_len,
            dtype=str(dtype).removeprefix("torch."),
            eos_token_ids=architecture.eos_token_ids,
            num_parameters=num_parameters,
        )

    def init_kv_cache(self) -> KVCacheConfig:
        """Profile a step, see how many blocks fit, and bind the cache to the attention layers.

        Raises:
            ConfigError: the blocks asked for do not fit, or do not hold one request of max_model_len tokens.
        """
        limits, block_size = self.config.scheduler, self.config.cache.block_size
        shape = CacheShape.of(self.decoder, block_size)
        activation_bytes = profile_activations(self.decoder, limits, self.max_model_len, shape, self.backend)
        for attention in self.decoder.attentions():
            attention.kv_cache = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        memory = device_memory(self.device)
        budget = cache_budget(self.config, memory, self.device, activation_bytes)
        kv_cache = KVCacheConfig(
            num_gpu_blocks=resolve_num_blocks(self.config, shape, self.max_model_len, memory, budget, activation_bytes),
            block_size=block_size,
            groups=shape.groups,
            none_hash=none_hash_for(self.config.cache.prefix_caching_hash_algo),
        )
        kv_cache.require_room_for(self.max_model_len, self.config)
        bind_kv_cache(self.decoder, shape, kv_cache.num_gpu_blocks, self.backend)
        architecture = self.decoder.architecture
        batch = InputBatch(
            limits.max_num_seqs,
            self.max_model_len,
            block_size,
            architecture.vocab_size,
            architecture.eos_token_ids,
            self.device,
            self._logits_processors,
            len(kv_cache.groups),
        )
        self.runner = ModelRunner(self.decoder, batch, self.backend)
        return kv_cache
