"""`Architecture`: what a checkpoint's `config.json` says about the shape of a decoder, in one typed struct.

Reads the files that Hugging Face models carry, of transformers 4 and 5; needs no torch.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from engine.errors import ModelError
from engine.models.config_file import ConfigFile
from engine.plain_values import is_int

#: Each is built before its weights are looked for: more than any model has would only take memory and time.
MOST_LAYERS = 1024

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


class Llama3Scaling(msgspec.Struct, frozen=True, kw_only=True, tag_field="rope_type", tag="llama3"):
    """Llama 3.1's rule: slow waves are stretched by `factor`, fast ones kept, those between are blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


class LinearScaling(msgspec.Struct, frozen=True, kw_only=True, tag_field="rope_type", tag="linear"):
    """Position interpolation: every position is divided by `factor`."""

    factor: float


RopeScaling = Llama3Scaling | LinearScaling
SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3")


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """A Llama-shaped decoder: which of the family's variations it uses, and its sizes."""

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """Queries and keys are normalised per head before they are rotated (Qwen3)."""
    sliding_windows: tuple[int | None, ...]
    """Per layer: tokens a query sees, itself included; None: all."""
    checkpoint_dtype: str | None
    eos_token_ids: tuple[int, ...]


def read_architecture(folder: Path) -> Architecture:
    """Read `config.json` and, if there is one, `generation_config.json`.

    Raises:
        ModelError: no config.json, one that is damaged, or a model that this decoder cannot run.
    """
    config = ConfigFile.read(folder / "config.json")
    name = _architecture_name(config, folder)
    _refuse_what_is_not_llama_shaped(config, name)
    generation = folder / "generation_config.json"
    told = [ConfigFile.read(generation)] if generation.exists() else []
    eos = next((file for file in told if file.values.get("eos_token_id") is not None), config)
    return shape_of(config, name, eos)


def shape_of(config: ConfigFile, name: str, eos: ConfigFile) -> Architecture:
    """The shape that a config gives a decoder.

    Args:
        config: sizes and variations, under Hugging Face's names.
        name: of the architecture.
        eos: where the ids that end a text are.

    Raises:
        ModelError: a value is missing or out of range.
    """
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads", default=num_heads)
    head_size = config.integer("head_dim", default=hidden_size // num_heads)
    if num_heads % num_kv_heads or head_size < 2 or head_size % 2:
        raise ModelError(
            f"{config.where} must have a multiple of num_key_value_heads as num_attention_heads and heads of an even "
            f"size, got {num_heads} heads, {num_kv_heads} of keys and values, of size {head_size}."
        )
    attention_bias, vocab_size = config.flag("attention_bias"), config.integer("vocab_size")
    return Architecture(
        name=name,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=_num_layers(config),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        max_position_embeddings=config.integer("max_position_embeddings", high=2**31 - 1),
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        rope_theta=_rope(config).number("rope_theta", config.number("rope_theta", 10_000.0)),
        rope_scaling=_rope_scaling(config),
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        # Qwen2 has a bias on queries, keys and values whatever its config says.
        qkv_bias=attention_bias or name == "Qwen2ForCausalLM",
        output_bias=attention_bias,
        mlp_bias=config.flag("mlp_bias"),
        qk_norm=name == "Qwen3ForCausalLM",
        sliding_windows=_sliding_windows(config, name),
        checkpoint_dtype=config.text("dtype") or config.text("torch_dtype"),
        eos_token_ids=_eos_token_ids(eos, vocab_size),
    )


def _architecture_name(config: ConfigFile, folder: Path) -> str:
    names = config.texts("architectures")
    for name in names:
        if name in SUPPORTED_ARCHITECTURES:
            return name
    raise ModelError(
        f"{folder} holds {' or '.join(names) or 'a model that names no architecture'}; "
        f"supported are {', '.join(SUPPORTED_ARCHITECTURES)}."
    )


def _num_layers(config: ConfigFile) -> int:
    return config.integer("num_hidden_layers", high=MOST_LAYERS)


def _refuse_what_is_not_llama_shaped(config: ConfigFile, name: str) -> None:
    activation = config.text("hidden_act") or "silu"
    if activation != "silu":
        raise ModelError(f"{name} with hidden_act {activation!r} is not supported, only silu is.")
    if config.values.get("quantization_config") is not None:
        method = config.table("quantization_config").text("quant_method") or "an unnamed method"
        raise ModelError(f"weights quantised by {method} are not supported; use an unquantised checkpoint.")
    if _rope(config).number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0)) != 1.0:
        raise ModelError(f"{name} with a partial rotary embedding is not supported.")


def _rope(config: ConfigFile) -> ConfigFile:
    """transformers 5 writes `rope_parameters`, transformers 4 `rope_scaling` beside `rope_theta`."""
    return config.table("rope_parameters" if config.values.get("rope_parameters") else "rope_scaling")


def _rope_scaling(config: ConfigFile) -> RopeScaling | None:
    rope = _rope(config)
    rope_type = rope.text("rope_type") or rope.text("type") or "default"
    match rope_type:
        case "default":
            return None
        case "linear":
            return LinearScaling(factor=rope.number("factor", math.nan))
        case "llama3":
            return _llama3_scaling(rope)
    raise ModelError(f"rope type {rope_type!r} is not supported; supported are {', '.join(SUPPORTED_ROPE_TYPES)}.")


def _llama3_scaling(rope: ConfigFile) -> Llama3Scaling:
    low, high = rope.number("low_freq_factor", math.nan), rope.number("high_freq_factor", math.nan)
    if low >= high:
        raise rope.refused("low_freq_factor", f"< high_freq_factor ({high:g})")
    return Llama3Scaling(
        factor=rope.number("factor", math.nan),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=rope.integer("original_max_position_embeddings", high=2**31 - 1),
    )


def _sliding_windows(config: ConfigFile, name: str) -> tuple[int | None, ...]:
    num_layers = _num_layers(config)
    if config.values.get("sliding_window") is None or name == "LlamaForCausalLM":
        return (None,) * num_layers
    window = config.integer("sliding_window", high=2**31 - 1)
    if name == "MistralForCausalLM":
        return (window,) * num_layers
    if not config.flag("use_sliding_window"):
        return (None,) * num_layers
    first = config.integer("max_window_layers", low=0, default=num_layers)
    kinds = config.texts("layer_types") or [
        "sliding_attention" if layer >= first else "full_attention" for layer in range(num_layers)
    ]
    if len(kinds) != num_layers:
        raise ModelError(f"layer_types must name {num_layers} layers, got {len(kinds)} in {config.where}.")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _eos_token_ids(file: ConfigFile, vocab_size: int) -> tuple[int, ...]:
    eos = file.values.get("eos_token_id")
    ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
    if not all(is_int(token_id, 0, vocab_size - 1) for token_id in ids):
        raise file.refused("eos_token_id", f"token ids in [0, {vocab_size - 1}]")
    return tuple(ids)
