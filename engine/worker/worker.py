"""`Worker`: one device, one model. Three procedures make it ready: init device, load model, init KV cache."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from engine.attention.backend import AttentionBackend
from engine.config import EngineConfig, KVCacheConfig, ModelFacts
from engine.core.kv_cache.block_hash import none_hash_for
from engine.models.architecture import read_architecture
from engine.models.causal_lm import CausalLM
from engine.sample.logits_processors import LogitsProcessor
from engine.spec_decode.proposer import Proposer
from engine.trace.events import (
    DeviceInitialized,
    Event,
    GraphCaptured,
    KVCacheAllocated,
    MemoryProfiled,
    ModelLoaded,
)
from engine.trace.recorder import Recorder
from engine.worker.cpu_threads import size_threads
from engine.worker.cuda_graphs import CudaGraphRecorder, DecodeGraphs
from engine.worker.dispatch import capture_sizes
from engine.worker.drafter import LoadedDrafter, Target, load_drafter
from engine.worker.input_batch import InputBatch
from engine.worker.input_buffers import InputBuffers, stay_on_host
from engine.worker.kv_cache import CacheShape, bind_kv_cache, cache_budget, resolve_num_blocks
from engine.worker.layer_groups import group_layers
from engine.worker.load_decoder import load_decoder
from engine.worker.memory import device_memory, device_name
from engine.worker.model_runner import ModelRunner
from engine.worker.placement import (
    require_memory,
    resolve_device,
    resolve_dtype,
    resolve_max_model_len,
)
from engine.worker.profile import profile_activations, profile_graphs


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
        self.decoder: CausalLM
        self.backend: AttentionBackend[Any]
        self.runner: ModelRunner
        self._loaded_drafter: LoadedDrafter | None = None
        self.max_model_len: int
        self.startup: list[Event] = []
        """How it came to be ready, for whoever records later."""

    def record_to(self, recorder: Recorder) -> None:
        """Tell how the worker came to be ready, and from now on of every step."""
        for event in self.startup:
            recorder.emit(event)
        self.runner.trace = recorder

    def init_device(self) -> None:
        """Choose the device and see that it has the memory that was promised.

        Raises:
            ConfigError: no such device, or too little of it is free.
        """
        started = time.perf_counter_ns()
        self.device = resolve_device(self.config.model.device)
        require_memory(self.config, self.device)
        if self.device.type == "cpu":
            size_threads()
        memory = device_memory(self.device)
        self.startup.append(
            DeviceInitialized(
                device=str(self.device),
                device_name=device_name(self.device),
                total_bytes=memory.total,
                available_bytes=memory.available,
                duration_ns=time.perf_counter_ns() - started,
            )
        )

    def load_model(self) -> ModelFacts:
        """Build the decoder and fill it from its checkpoint.

        Raises:
            ModelError: an unsupported or damaged model, or weights that do not fit.
            ConfigError: a dtype that the device lacks, an attention backend that cannot serve the model, or a
                max_model_len beyond the model's.
        """
        started = time.perf_counter_ns()
        architecture = read_architecture(self.model_path)
        dtype = resolve_dtype(self.config.model.dtype, architecture.checkpoint_dtype, self.device)
        self.max_model_len = resolve_max_model_len(self.config.model.max_model_len, architecture)
        loaded = load_decoder(architecture, self.model_path, self.config, dtype, self.device, self.max_model_len)
        self.decoder, self.backend, num_parameters = loaded
        if self.config.speculative is not None:
            target = Target(self.decoder, self.backend, self.config, self.max_model_len)
            self._loaded_drafter = load_drafter(self.config.speculative, target)
        self.startup.append(
            ModelLoaded(
                num_parameters=num_parameters,
                weight_bytes=self.decoder.weight_bytes(),
                attention_backend=self.backend.name,
                duration_ns=time.perf_counter_ns() - started,
            )
        )
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
            intermediate_size=architecture.intermediate_size,
            tie_word_embeddings=architecture.tie_word_embeddings,
        )

    def init_kv_cache(self) -> KVCacheConfig:
        """Profile a step, see how many blocks fit, bind the cache to the attention layers, and capture graphs over it.

        Raises:
            ConfigError: the blocks asked for do not fit, or do not hold one request of max_model_len tokens.
        """
        drafter = None if self._loaded_drafter is None else self._loaded_drafter.decoder
        shape = CacheShape.of(self.decoder, self.config.cache.block_size, drafter)
        sizes = self._capture_sizes()
        buffers = self._input_buffers(shape, sizes)
        working_bytes = self._profile(shape, buffers, sizes)

        started = time.perf_counter_ns()
        memory = device_memory(self.device)
        budget = cache_budget(self.config, memory, self.device, working_bytes)
        kv_cache = KVCacheConfig(
            num_gpu_blocks=resolve_num_blocks(self.config, shape, self.max_model_len, memory, budget, working_bytes),
            block_size=shape.block_size,
            groups=shape.groups,
            none_hash=none_hash_for(self.config.cache.prefix_caching_hash_algo),
        )
        kv_cache.require_room_for(self.max_model_len, self.config)
        bind_kv_cache(self.decoder, shape, kv_cache.num_gpu_blocks, self.backend)
        self.startup.append(
            KVCacheAllocated(
                num_gpu_blocks=kv_cache.num_gpu_blocks,
                num_bytes=kv_cache.num_gpu_blocks * shape.block_bytes,
                budget_bytes=budget,
                duration_ns=time.perf_counter_ns() - started,
            )
        )
        graphs = self._capture(sizes, buffers) if buffers is not None and sizes else None
        self.runner = ModelRunner(
            self.decoder,
            self._batch(shape),
            self.backend,
            buffers,
            graphs,
            self._drafter(shape, kv_cache.num_gpu_blocks),
        )
        return kv_cache

    def _drafter(self, shape: CacheShape, num_blocks: int) -> Proposer | None:
        """Who drafts, with its KV cache bound if it needs one."""
        if self._loaded_drafter is None:
            return None
        decoder, backend, proposer = self._loaded_drafter
        if decoder is None:
            return proposer(stay_on_host)
        assert shape.drafter is not None and backend is not None
        bind_kv_cache(decoder, shape.drafter, num_blocks, backend)
        # Beside the tokens of a step it runs the one that each request has got.
        buffers = self._input_buffers(shape, (), more_tokens=self.config.scheduler.max_num_seqs)
        return proposer(stay_on_host if buffers is None else buffers.place)

    def _batch(self, shape: CacheShape) -> InputBatch:
        architecture = self.decoder.architecture
        return InputBatch(
            self.config.scheduler.max_num_seqs,
            self.max_model_len,
            shape.block_size,
            architecture.vocab_size,
            architecture.eos_token_ids,
            self.device,
            self._logits_processors,
            len(shape.groups),
        )

    def _capture_sizes(self) -> tuple[int, ...]:
        execution = self.config.execution
        if self.device.type != "cuda" or execution.enforce_eager or not self.backend.captures_decodes:
            return ()
        return capture_sizes(execution.cudagraph_capture_sizes, self.config.scheduler.max_num_seqs)

    def _input_buffers(self, shape: CacheShape, sizes: tuple[int, ...], more_tokens: int = 0) -> InputBuffers | None:
        if self.device.type == "cpu":
            return None
        limits = self.config.scheduler
        rows = max(limits.max_num_seqs, *sizes, 1)
        max_blocks = -(-self.max_model_len // shape.block_size)
        num_tokens = max(limits.max_num_batched_tokens, rows) + more_tokens
        return InputBuffers(num_tokens, rows, max_blocks, len(shape.groups), self.device)

    def _profile(self, shape: CacheShape, buffers: InputBuffers | None, sizes: tuple[int, ...]) -> int:
        """Bytes that steps take beside the weights."""
        started = time.perf_counter_ns()
        limits = self.config.scheduler
        activation_bytes = profile_activations(self.decoder, limits, self.max_model_len, shape, self.backend, buffers)
        graph_bytes = 0
        if buffers is not None and sizes:
            graph_bytes = profile_graphs(lambda: self._graphs(buffers, sizes), sizes, self.device)
        for attention in self.decoder.attentions():
            attention.kv_cache = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.startup.append(
            MemoryProfiled(
                num_tokens=limits.max_num_batched_tokens,
                activation_bytes=activation_bytes,
                graph_bytes=graph_bytes,
                duration_ns=time.perf_counter_ns() - started,
            )
        )
        return activation_bytes + graph_bytes

    def _capture(self, sizes: tuple[int, ...], buffers: InputBuffers) -> DecodeGraphs:
        started = time.perf_counter_ns()
        before = device_memory(self.device).available
        graphs = self._graphs(buffers, sizes)
        graphs.capture(sizes)
        torch.cuda.empty_cache()
        self.startup.append(
            GraphCaptured(
                sizes=list(sizes),
                num_bytes=before - device_memory(self.device).available,
                duration_ns=time.perf_counter_ns() - started,
            )
        )
        return graphs

    def _graphs(self, buffers: InputBuffers, sizes: tuple[int, ...]) -> DecodeGraphs:
        windows = [group.sliding_window for group in group_layers(self.decoder.architecture.sliding_windows)]
        recorder = CudaGraphRecorder()
        return DecodeGraphs(self.decoder, self.backend, windows, buffers, self.max_model_len, max(sizes), recorder)
