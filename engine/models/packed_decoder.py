"""The decoder as a CPU runs it best: the same weights in panels, all layers one call into the compiled kernels.

`PackedDecoder` is made out of a loaded `Decoder`, which gives its parameters up one by one: no more than one matrix is
there twice. It computes in float32, whatever the weights are stored in, and a row's result does not depend on what
else is in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from engine.attention.cpu import CpuPlan
from engine.errors import ModelError
from engine.layers.attention import AttentionMetadata, KVCacheOfLayer
from engine.layers.linear import FusedLinear
from engine.models.decoder import Decoder, DecoderLayer
from kernels.cpu import operations
from kernels.cpu.draft_chain import Drafter
from kernels.cpu.operations import Cache, Heads, LayerWeights
from kernels.cpu.packing import GROUP_SIZE, PackedMatrix, Quantization, interleave_gate_up

#: Neither the embedding nor the head bears 4 bits: what is lost there reaches every token.
_HEAD_QUANTIZATION: dict[Quantization | None, Quantization | None] = {None: None, "int8": "int8", "int4": "int8"}


class PackedLayer:
    """One layer, and the part of the KV cache that is bound to it."""

    def __init__(self, layer: DecoderLayer, sliding_window: int | None, quantization: Quantization | None) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        eps = layer.input_layernorm.eps
        self.weights = LayerWeights(
            qkv=_taken(attention.qkv_proj, quantization),
            output=_taken(attention.o_proj, quantization),
            gate_up=_taken(mlp.gate_up_proj, quantization, interleaved=True),
            down=_taken(mlp.down_proj, quantization),
            input_norm=layer.input_layernorm.weight.data.float(),
            post_norm=layer.post_attention_layernorm.weight.data.float(),
            query_norm=None if attention.q_norm is None else attention.q_norm.weight.data.float(),
            key_norm=None if attention.k_norm is None else attention.k_norm.weight.data.float(),
            eps=eps,
        )
        self.heads = Heads(
            None,
            attention.num_heads,
            attention.num_kv_heads,
            attention.head_size,
            sliding_window or 0,
            attention.scale,
            0.0,
        )
        self.kv_cache: KVCacheOfLayer | None = None
        """Bound once the size of the cache is known; without it the layer cannot run."""


class _Bound(NamedTuple):
    """Layers over a KV cache."""

    layers: operations.DecoderLayers
    groups: list[int]
    """Of each layer's part of the cache."""
    first: KVCacheOfLayer
    """The first layer's part."""


def _bind(layers: list[PackedLayer], head: PackedMatrix) -> _Bound:
    caches = [layer.kv_cache for layer in layers if layer.kv_cache is not None]
    if len(caches) < len(layers):
        raise RuntimeError("attention runs only after its KV cache was bound.")
    parts = [
        (layer.weights, layer.heads, Cache.of(cache.key_cache, cache.value_cache))
        for layer, cache in zip(layers, caches, strict=True)
    ]
    return _Bound(operations.DecoderLayers(parts, head), [cache.group for cache in caches], caches[0])


class PackedDecoder:
    """A causal language model over a paged KV cache, in panels.

    Args:
        decoder: loaded, on the CPU; it cannot be used any more afterwards.
        quantization: bits to keep of each weight; None: all.
    """

    def __init__(self, decoder: Decoder, quantization: Quantization | None = None) -> None:
        self.architecture = decoder.architecture
        self.dtype, self.device = decoder.dtype, decoder.device
        windows = self.architecture.sliding_windows
        layers = cast(list[DecoderLayer], list(decoder.layers))
        self._layers = [PackedLayer(layer, window, quantization) for layer, window in zip(layers, windows, strict=True)]
        self._norm, self._eps = decoder.norm.weight.data.float(), decoder.norm.eps
        head = _HEAD_QUANTIZATION[quantization]
        if head is not None and self.architecture.hidden_size % GROUP_SIZE[head]:
            head = None
        tied = self.architecture.tie_word_embeddings
        self._embedding = _packed(_emptied(decoder.embed_tokens), None, head)
        self._head = self._embedding if tied else _packed(_emptied(decoder.lm_head), None, head)
        self._cos, self._sin = decoder.cos.float(), decoder.sin.float()
        self._bound: _Bound | None = None
        self._drafter: Drafter | None = None

    def embed(self, input_ids: Tensor) -> Tensor:
        """[num_tokens] int64 → [num_tokens, hidden_size] float32."""
        return operations.embedding(input_ids, self._embedding)

    def __call__(
        self, input_ids: Tensor, positions: Tensor, metadata: AttentionMetadata, input_embeds: Tensor | None = None
    ) -> Tensor:
        """As `Decoder.forward`; float32."""
        cos, sin = self._cos.index_select(0, positions), self._sin.index_select(0, positions)
        residual = self.embed(input_ids) if input_embeds is None else input_embeds.float().clone()
        bound = self._bound_layers()
        bound.layers(residual, cos, sin, [cast(CpuPlan, metadata.plans[group]).step for group in bound.groups])
        return operations.rms_norm(residual, self._norm, self._eps)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden_size] → [rows, vocab_size] float32."""
        return operations.linear(hidden.float(), self._head)

    def drafter(
        self,
        embeddings: PackedDecoder | None = None,
        combine: PackedMatrix | None = None,
        target_ids: Tensor | None = None,
    ) -> Drafter:
        """The model as the kernels draft with it, always in the same way.

        Args:
            embeddings: whose embeddings enter; None: its own.
            combine, target_ids: as for `Drafter`.
        """
        layers = self._bound_layers().layers
        if self._drafter is None or self._drafter.layers is not layers:
            self._drafter = Drafter(
                (embeddings or self)._embedding,
                combine,
                layers,
                self._norm,
                self._eps,
                self._head,
                target_ids,
                (self._cos, self._sin),
            )
        return self._drafter

    def _bound_layers(self) -> _Bound:
        """The layers over the KV cache that is bound to them; all are bound to one, or to none."""
        if self._bound is None or self._bound.first is not self._layers[0].kv_cache:
            self._bound = _bind(self._layers, self._head)
        return self._bound

    def attentions(self) -> Iterator[PackedLayer]:
        """What a KV cache is bound to, first layer to last."""
        return iter(self._layers)

    def weight_bytes(self) -> int:
        """Bytes of the weights, a tied output head counted once."""
        matrices = [self._embedding] if self._head is self._embedding else [self._embedding, self._head]
        for layer in self._layers:
            matrices += layer.weights[:4]
        return sum(matrix.num_bytes for matrix in matrices)


def _taken(linear: FusedLinear, quantization: Quantization | None, *, interleaved: bool = False) -> PackedMatrix:
    """The packed weights of a `FusedLinear`, which loses them."""
    matrix, bias = _emptied(linear.weight), None if linear.bias is None else linear.bias.data
    if interleaved:
        matrix, bias = interleave_gate_up(matrix), None if bias is None else interleave_gate_up(bias)
    return _packed(matrix, bias, quantization)


def _packed(matrix: Tensor, bias: Tensor | None, quantization: Quantization | None) -> PackedMatrix:
    try:
        return PackedMatrix(matrix, bias, quantization)
    except ValueError as error:
        raise ModelError(f"The model cannot be quantized: {error}") from error


def _emptied(parameter: nn.Parameter) -> Tensor:
    """The parameter's data, which it loses; in half the bytes, if that changes none of the numbers."""
    data = parameter.data
    parameter.data = data.new_empty(0)
    if data.dtype == torch.float32:
        # Many a float32 model was widened from bfloat16: its weights have nothing in their lower halves.
        narrow = data.bfloat16()
        if torch.equal(narrow.float(), data):
            return narrow
    return data
