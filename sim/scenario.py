"""What is simulated: a model on a device under a configuration, resolved to what the core and the clock need."""

from __future__ import annotations

import platform
from typing import NamedTuple

import msgspec

import engine
from engine.config import EngineConfig, KVCacheConfig, KVCacheGroup, ModelFacts
from engine.core.kv_cache.block_hash import none_hash_for
from engine.errors import ConfigError
from engine.models.architecture import Architecture
from engine.models.model_shape import ModelShape
from engine.trace.events import SCHEMA_VERSION, Header
from engine.worker.dispatch import capture_sizes
from engine.worker.layer_groups import group_layers
from sim.cost_model.calibrated import CalibratedDevice
from sim.cost_model.capacity import num_blocks_that_fit
from sim.cost_model.cost_model import CostModel
from sim.cost_model.device_file import Device
from sim.cost_model.devices import RooflineDevice
from sim.cost_model.roofline import RooflineModel

_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


class Scenario(NamedTuple):
    """An engine without a model."""

    config: EngineConfig
    model: ModelFacts
    kv_cache: KVCacheConfig
    cost_model: CostModel
    device: str

    @property
    def header(self) -> Header:
        """The first line of the simulation's trace."""
        return Header(
            schema_version=SCHEMA_VERSION,
            engine_version=engine.__version__,
            level="control",
            config=msgspec.structs.replace(
                self.config, trace=msgspec.structs.replace(self.config.trace, level="control")
            ),
            model=self.model,
            kv_cache=self.kv_cache,
            tokenizer="none",
            device=f"simulated {self.device}",
            environment={"python": platform.python_version()},
        )


def resolve_scenario(config: EngineConfig, device: Device, architecture: Architecture | None) -> Scenario:
    """Resolve what a configuration leaves open.

    Args:
        config: of the engine.
        device: where it runs.
        architecture: of the model; None: the one that the device was calibrated with.

    Raises:
        ConfigError: the model does not fit, the pool is too small, or device and model contradict each other.
    """
    if isinstance(device, CalibratedDevice):
        return _calibrated(config, device)
    if architecture is None:
        raise ConfigError(f"A simulation on {device.name} needs a model: name one with --model.")
    return _on_roofline(config, device, architecture)


def _on_roofline(config: EngineConfig, device: RooflineDevice, architecture: Architecture) -> Scenario:
    shape = ModelShape.of(architecture)
    dtype = config.model.dtype if config.model.dtype != "auto" else architecture.checkpoint_dtype or "bfloat16"
    dtype_bytes = _DTYPE_BYTES[dtype]
    limits = config.scheduler
    max_model_len = config.model.max_model_len or architecture.max_position_embeddings
    num_blocks = config.cache.num_gpu_blocks_override or num_blocks_that_fit(
        shape,
        device,
        dtype_bytes=dtype_bytes,
        block_size=config.cache.block_size,
        gpu_memory_utilization=config.cache.gpu_memory_utilization,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
    )
    groups = group_layers(architecture.sliding_windows)
    per_layer = 2 * config.cache.block_size * shape.num_kv_heads * shape.head_size * dtype_bytes
    block_bytes = per_layer * max(len(group.layers) for group in groups)
    kv_cache = KVCacheConfig(
        num_gpu_blocks=num_blocks,
        block_size=config.cache.block_size,
        groups=tuple(
            KVCacheGroup(
                kind="full_attention" if group.sliding_window is None else "sliding_window",
                num_layers=len(group.layers),
                layers=group.layers,
                sliding_window=group.sliding_window,
                block_bytes=block_bytes,
            )
            for group in groups
        ),
        none_hash=none_hash_for(config.cache.prefix_caching_hash_algo),
    )
    model = ModelFacts(
        name=config.model.model,
        architecture=architecture.name,
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_attention_heads,
        num_kv_heads=shape.num_kv_heads,
        head_size=shape.head_size,
        vocab_size=shape.vocab_size,
        max_model_len=max_model_len,
        dtype=dtype,
        eos_token_ids=architecture.eos_token_ids,
        num_parameters=shape.num_parameters,
        intermediate_size=shape.intermediate_size,
        tie_word_embeddings=shape.tied,
    )
    sizes: tuple[int, ...] = ()
    if device.launch_ns and not config.execution.enforce_eager:
        sizes = capture_sizes(config.execution.cudagraph_capture_sizes, limits.max_num_seqs)
    cost_model = RooflineModel(shape, device, dtype_bytes, tuple(sorted(sizes)))
    return Scenario(config, model, kv_cache, cost_model, device.name)


def _calibrated(config: EngineConfig, device: CalibratedDevice) -> Scenario:
    if config.cache.block_size != device.kv_cache.block_size:
        raise ConfigError(
            f"The device was calibrated with block_size={device.kv_cache.block_size}, got {config.cache.block_size}."
        )
    kv_cache, model = device.kv_cache, device.model
    if config.cache.num_gpu_blocks_override is not None:
        kv_cache = msgspec.structs.replace(kv_cache, num_gpu_blocks=config.cache.num_gpu_blocks_override)
    if config.model.max_model_len is not None:
        model = msgspec.structs.replace(model, max_model_len=config.model.max_model_len)
    return Scenario(config, model, kv_cache, device.model_of_time(), device.name)
