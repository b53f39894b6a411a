"""Small models with random weights, in Hugging Face's format, made by Hugging Face's own classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

SIZES = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 2,
}

#: What each family has of its own, and each variation of the shape at least once.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "llama biased": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3 rope": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "llama linear rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}},
    ),
    "mistral": ("Mistral", {"head_dim": 16, "sliding_window": None}),
    "mistral windowed": ("Mistral", {"head_dim": 16, "sliding_window": 9}),
    "qwen2": ("Qwen2", {}),
    "qwen2 windowed": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3 tied": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
}


def save_random_model(folder: Path, variant: str, **changes: Any) -> transformers.PreTrainedModel:
    """Make a model, save it, and return Hugging Face's own instance of it, in float32."""
    family, own = VARIANTS[variant]
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **own, **changes})
    torch.manual_seed(0)
    model: transformers.PreTrainedModel = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Norms and biases start at one and zero, where they could be mixed up unnoticed. Wider matrices than the
            # default make the logits differ enough for near-ties to be rare.
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.mul_(4.0)
    model.save_pretrained(folder)
    return model
