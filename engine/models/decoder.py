"""One decoder for every Llama-shaped architecture (Llama, Mistral, Qwen2, Qwen3).

::

    input_ids ─► embedding ─► [ norm ─► attention ─► + ─► norm ─► SwiGLU ─► + ] × num_layers ─► norm ─► hidden states
                                                                       rows that are sampled ─► output head ─► logits

Everything a forward pass depends on comes in through its arguments: token ids, positions, and the metadata that says
where the KV cache is read and written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.layers.attention import Attention, AttentionMetadata
from engine.layers.linear import FusedLinear
from engine.layers.norm import RMSNorm
from engine.layers.rotary import cos_sin_table, inverse_frequencies
from engine.models.architecture import Architecture
from kernels.silu_and_mul import silu_and_mul


class MLP(nn.Module):
    """The SwiGLU feed-forward layer: down(silu(gate(x)) · up(x))."""

    def __init__(self, architecture: Architecture, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, intermediate = architecture.hidden_size, architecture.intermediate_size
        self.gate_up_proj = FusedLinear(hidden, (intermediate, intermediate), bias=architecture.mlp_bias, dtype=dtype)
        self.down_proj = FusedLinear(intermediate, (hidden,), bias=architecture.mlp_bias, dtype=dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        """[num_tokens, hidden_size] → [num_tokens, hidden_size]."""
        return self.down_proj(silu_and_mul(self.gate_up_proj(hidden)))


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the residual stream."""

    def __init__(self, architecture: Architecture, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, eps = architecture.hidden_size, architecture.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps, dtype)
        self.self_attn = Attention(architecture, dtype)
        self.post_attention_layernorm = RMSNorm(hidden, eps, dtype)
        self.mlp = MLP(architecture, dtype)

    def forward(
        self, hidden: Tensor, residual: Tensor | None, cos: Tensor, sin: Tensor, metadata: AttentionMetadata
    ) -> tuple[Tensor, Tensor]:
        """Output of the layer before and residual stream, both [num_tokens, hidden_size] → the same for the next."""
        if residual is None:
            hidden, residual = self.input_layernorm(hidden), hidden
        else:
            hidden, residual = self.input_layernorm.add(hidden, residual)
        hidden = self.self_attn(hidden, cos, sin, metadata)
        hidden, residual = self.post_attention_layernorm.add(hidden, residual)
        return self.mlp(hidden), residual


class Decoder(nn.Module):
    """A causal language model over a paged KV cache.

    Args:
        architecture: its shape.
        num_positions: positions it must be able to tell apart (max_model_len).
        dtype: dtype of the weights and of the arithmetic.
    """

    def __init__(self, architecture: Architecture, num_positions: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.architecture = architecture
        shape = (architecture.vocab_size, architecture.hidden_size)
        self.embed_tokens = nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
        self.layers = nn.ModuleList(DecoderLayer(architecture, dtype) for _ in range(architecture.num_layers))
        self.norm = RMSNorm(architecture.hidden_size, architecture.rms_norm_eps, dtype)
        self.lm_head = (
            self.embed_tokens
            if architecture.tie_word_embeddings
            else nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
        )
        with torch.device("cpu"):  # the same angles, bit for bit, on every device
            frequencies = inverse_frequencies(
                architecture.head_size, architecture.rope_theta, architecture.rope_scaling
            )
            cos, sin = cos_sin_table(frequencies, num_positions, dtype)
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", cos.to(self.embed_tokens.device), persistent=False)
        self.register_buffer("sin", sin.to(self.embed_tokens.device), persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights, of the arithmetic and of the KV cache."""
        return self.embed_tokens.dtype

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.embed_tokens.device

    def embed(self, input_ids: Tensor) -> Tensor:
        """[num_tokens] int64 → [num_tokens, hidden_size]."""
        return F.embedding(input_ids, self.embed_tokens)

    def forward(
        self, input_ids: Tensor, positions: Tensor, metadata: AttentionMetadata, input_embeds: Tensor | None = None
    ) -> Tensor:
        """Run a super-sequence.

        Args:
            input_ids: [num_tokens] int64.
            positions: [num_tokens] int64, of each token in its own request.
            metadata: where the tokens' keys and values are written and read.
            input_embeds: [num_tokens, hidden_size], in place of the embeddings of `input_ids`.

        Returns:
            Hidden states after the last norm, [num_tokens, hidden_size].
        """
        cos, sin = self.cos.index_select(0, positions), self.sin.index_select(0, positions)
        hidden = self.embed(input_ids) if input_embeds is None else input_embeds
        residual: Tensor | None = None
        for layer in self._layers():
            hidden, residual = layer(hidden, residual, cos, sin, metadata)
        assert residual is not None  # there is at least one layer
        return self.norm.add(hidden, residual)[0]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden_size] → [rows, vocab_size] float32."""
        return F.linear(hidden, self.lm_head).float()

    def attentions(self) -> Iterator[Attention]:
        """The attention of every layer, first to last."""
        return (layer.self_attn for layer in self._layers())

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """Every tensor of a checkpoint by its Hugging Face name, as a view of the parameter that it fills."""
        tensors = {"model.embed_tokens.weight": self.embed_tokens.data, "model.norm.weight": self.norm.weight.data}
        if not self.architecture.tie_word_embeddings:
            tensors["lm_head.weight"] = self.lm_head.data
        for index, layer in enumerate(self._layers()):
            attention, mlp = layer.self_attn, layer.mlp
            parts = {
                "input_layernorm.weight": layer.input_layernorm.weight.data,
                "post_attention_layernorm.weight": layer.post_attention_layernorm.weight.data,
                **attention.qkv_proj.parts("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                **attention.o_proj.parts("self_attn.o_proj"),
                **mlp.gate_up_proj.parts("mlp.gate_proj", "mlp.up_proj"),
                **mlp.down_proj.parts("mlp.down_proj"),
            }
            if attention.q_norm is not None and attention.k_norm is not None:
                parts["self_attn.q_norm.weight"] = attention.q_norm.weight.data
                parts["self_attn.k_norm.weight"] = attention.k_norm.weight.data
            tensors.update({f"model.layers.{index}.{name}": view for name, view in parts.items()})
        return tensors

    def num_parameters(self) -> int:
        """Number of weights, a tied output head counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def weight_bytes(self) -> int:
        """Bytes of the weights, a tied output head counted once."""
        return self.num_parameters() * self.dtype.itemsize

    def _layers(self) -> list[DecoderLayer]:
        return cast(list[DecoderLayer], list(self.layers))
