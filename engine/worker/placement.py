"""Where a model runs and in which arithmetic: what `auto` means, and what a device cannot do."""

from __future__ import annotations

import torch

from engine.config import Dtype, EngineConfig
from engine.errors import ConfigError, ModelError
from engine.models.architecture import Architecture
from engine.worker.memory import device_memory, gib
from kernels.cpu.packing import GROUP_SIZE

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def resolve_device(device: str) -> torch.device:
    """`auto` is the first GPU, else the CPU.

    Raises:
        ConfigError: cuda is asked for, and torch finds none.
    """
    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        raise ConfigError("device=cuda was asked for, but torch finds no CUDA device here; use device=cpu or auto.")
    return torch.device("cuda:0") if has_cuda and device != "cpu" else torch.device("cpu")


def resolve_dtype(dtype: Dtype, checkpoint_dtype: str | None, device: torch.device) -> torch.dtype:
    """`auto` is the checkpoint's dtype on a GPU, and float32 on a CPU.

    Most CPUs have no fast bfloat16 arithmetic (theirs is emulated, or bound by instructions rather than by memory),
    and in float32 the output equals the reference implementation's token for token.

    Raises:
        ModelError: the checkpoint's dtype is none that the engine computes in.
        ConfigError: the device does not compute in the dtype.
    """
    if dtype != "auto":
        resolved = DTYPES[dtype]
    elif device.type == "cpu":
        return torch.float32
    elif (checkpoint_dtype or "bfloat16") in DTYPES:
        resolved = DTYPES[checkpoint_dtype or "bfloat16"]
    else:
        raise ModelError(f"weights of dtype {checkpoint_dtype} are not supported; supported are {', '.join(DTYPES)}.")
    if resolved is torch.bfloat16 and device.type == "cuda" and not torch.cuda.is_bf16_supported(False):
        raise ConfigError(f"{torch.cuda.get_device_name(device)} has no bfloat16; use dtype=float16 or float32.")
    return resolved


def require_quantizable(quantization: str | None, architecture: Architecture, backend: str) -> None:
    """Refuse a quantization that the kernels cannot run.

    Raises:
        ConfigError: they are not those of the CPU, or the model's sizes do not divide into groups.
    """
    if quantization is None:
        return
    if backend != "cpu":
        raise ConfigError(f"quantization={quantization} needs the CPU kernels (attention_backend=cpu), got {backend}.")
    group = GROUP_SIZE[quantization]
    heads_size = architecture.num_heads * architecture.head_size
    for features in (architecture.hidden_size, architecture.intermediate_size, heads_size):
        if features % group:
            raise ConfigError(
                f"quantization={quantization} needs sizes that are multiples of {group}, but the model has {features}."
            )


def resolve_max_model_len(asked: int | None, architecture: Architecture) -> int:
    """The longest prompt + output: what was asked for, else all the positions that the model knows.

    Raises:
        ConfigError: more than the model knows.
    """
    limit = architecture.max_position_embeddings
    if asked is not None and asked > limit:
        raise ConfigError(f"max_model_len={asked} is more than the {limit} positions that the model knows.")
    return limit if asked is None else asked


def require_memory(config: EngineConfig, device: torch.device) -> None:
    """Refuse a GPU that others use so much that `gpu_memory_utilization` cannot be had.

    Raises:
        ConfigError: with the numbers.
    """
    memory = device_memory(device)
    share = config.cache.gpu_memory_utilization
    wanted = int(memory.total * share)
    if device.type == "cuda" and memory.available < wanted:
        raise ConfigError(
            f"gpu_memory_utilization={share} asks for {gib(wanted)} of {device}, but only {gib(memory.available)} "
            f"of its {gib(memory.total)} are free; lower it to {memory.available / memory.total:.2f} or less."
        )


def require_room_for_weights(num_parameters: int, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse weights that do not fit into the memory that is available.

    Raises:
        ModelError: with the numbers.
    """
    needed, memory = num_parameters * dtype.itemsize, device_memory(device)
    if needed > memory.available:
        raise ModelError(
            f"The weights take {gib(needed)} ({num_parameters:,} parameters in {str(dtype).removeprefix('torch.')}), "
            f"but only {gib(memory.available)} of {gib(memory.total)} are available on {device}."
        )
