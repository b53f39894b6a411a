"""`Architecture`: what a checkpoint's `config.json` says about the shape of a decoder, in one typed struct.

Reads the files that Hugging Face models carry, of transformers 4 and 5; needs no torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import ModelError

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
    config = _read_json(folder / "config.json")
    name = _architecture_name(config, folder)
    _refuse_what_is_not_llama_shaped(config, name)
    generation = folder / "generation_config.json"
    eos = _read_json(generation).get("eos_token_id") if generation.exists() else None
    try:
        return _architecture(config, name, eos if eos is not None else config.get("eos_token_id"))
    except KeyError as error:
        raise ModelError(f"{folder / 'config.json'} lacks {error}.") from error
    except (TypeError, ValueError, msgspec.ValidationError) as error:
        raise ModelError(f"{folder / 'config.json'} holds a value of the wrong kind: {error}.") from error


def _architecture(config: dict[str, Any], name: str, eos: int | list[int] | None) -> Architecture:
    num_heads = int(config["num_attention_heads"])
    attention_bias = bool(config.get("attention_bias", False))
    return Architecture(
        name=name,
        vocab_size=int(config["vocab_size"]),
        hidden_size=int(config["hidden_size"]),
        intermediate_size=int(config["intermediate_size"]),
        num_layers=int(config["num_hidden_layers"]),
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_size=int(config.get("head_dim") or config["hidden_size"] // num_heads),
        max_position_embeddings=int(config["max_position_embeddings"]),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=_rope_theta(config),
        rope_scaling=_rope_scaling(config),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        # Qwen2 has a bias on queries, keys and values whatever its config says.
        qkv_bias=attention_bias or name == "Qwen2ForCausalLM",
        output_bias=attention_bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=name == "Qwen3ForCausalLM",
        sliding_windows=_sliding_windows(config, name),
        checkpoint_dtype=config.get("dtype") or config.get("torch_dtype"),
        eos_token_ids=_as_ids(eos),
    )


def _architecture_name(config: dict[str, Any], folder: Path) -> str:
    names = config.get("architectures") or []
    for name in names:
        if name in SUPPORTED_ARCHITECTURES:
            return str(name)
    raise ModelError(
        f"{folder} holds {' or '.join(map(str, names)) or 'a model that names no architecture'}; "
        f"supported are {', '.join(SUPPORTED_ARCHITECTURES)}."
    )


def _refuse_what_is_not_llama_shaped(config: dict[str, Any], name: str) -> None:
    if config.get("hidden_act", "silu") != "silu":
        raise ModelError(f"{name} with hidden_act {config['hidden_act']!r} is not supported, only silu is.")
    if config.get("quantization_config") is not None:
        method = config["quantization_config"].get("quant_method", "an unnamed method")
        raise ModelError(f"weights quantised by {method} are not supported; use an unquantised checkpoint.")
    if _rope(config).get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ModelError(f"{name} with a partial rotary embedding is not supported.")


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    """transformers 5 writes `rope_parameters`, transformers 4 `rope_scaling` beside `rope_theta`."""
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _rope_theta(config: dict[str, Any]) -> float:
    return float(_rope(config).get("rope_theta") or config.get("rope_theta") or 10_000.0)


def _rope_scaling(config: dict[str, Any]) -> RopeScaling | None:
    rope = dict(_rope(config))
    rope_type = rope.setdefault("rope_type", rope.get("type", "default"))
    if rope_type == "default":
        return None
    if rope_type not in SUPPORTED_ROPE_TYPES:
        raise ModelError(f"rope type {rope_type!r} is not supported; supported are {', '.join(SUPPORTED_ROPE_TYPES)}.")
    scaling: RopeScaling = msgspec.convert(rope, RopeScaling)
    return scaling


def _sliding_windows(config: dict[str, Any], name: str) -> tuple[int | None, ...]:
    num_layers = int(config["num_hidden_layers"])
    window = config.get("sliding_window")
    if window is None or name == "LlamaForCausalLM":
        return (None,) * num_layers
    if name == "MistralForCausalLM":
        return (int(window),) * num_layers
    if not config.get("use_sliding_window", False):
        return (None,) * num_layers
    first = int(config.get("max_window_layers", num_layers))
    kinds = config.get("layer_types") or [
        "sliding_attention" if layer >= first else "full_attention" for layer in range(num_layers)
    ]
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)


def _as_ids(eos: int | list[int] | None) -> tuple[int, ...]:
    if eos is None:
        return ()
    return (int(eos),) if isinstance(eos, int) else tuple(int(token_id) for token_id in eos)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent} is not a model folder: it holds no {path.name}.") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} must hold a JSON object.")
    return content
