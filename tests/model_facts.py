"""The facts of a model that no test loads."""

from __future__ import annotations

from typing import Any

from engine.config import ModelFacts


def model_facts(**facts: Any) -> ModelFacts:
    """Those of a very small Llama, but for what is given."""
    small: dict[str, Any] = {
        "name": "m",
        "architecture": "LlamaForCausalLM",
        "num_layers": 1,
        "hidden_size": 8,
        "num_attention_heads": 1,
        "num_kv_heads": 1,
        "head_size": 8,
        "vocab_size": 100,
        "max_model_len": 1000,
        "dtype": "float32",
        "eos_token_ids": (),
    }
    return ModelFacts(**{**small, **facts})
