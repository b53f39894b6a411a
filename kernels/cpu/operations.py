"""What Python calls: the decoder layers and their relatives, on tensors.

Activations are float32 throughout, whatever the weights and the cache are stored in. Threads are torch's: both share
one OpenMP runtime, so they never fight over the cores.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.cpu import library
from kernels.cpu.packing import Matrix, PackedMatrix, panel_columns

#: How the cache may be stored.
CACHE_FORMATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}

#: What a tile has room for.
MOST_HEADS_OF_A_GROUP = 64

#: Queries × heads of an attention tile: enough to use what was loaded often, few enough to stay in cache.
_TILE_ROWS = 48


class Heads(ctypes.Structure):
    """`Heads` of attention.h."""

    _fields_ = (
        ("slopes", ctypes.c_void_p),
        ("query_heads", ctypes.c_int32),
        ("kv_heads", ctypes.c_int32),
        ("head_size", ctypes.c_int32),
        ("window", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("soft_cap", ctypes.c_float),
    )


class Cache(ctypes.Structure):
    """`Cache` of attention.h."""

    _fields_ = (
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("format", ctypes.c_int32),
        ("block_size", ctypes.c_int32),
    )

    @classmethod
    def of(cls, keys: Tensor, values: Tensor) -> Cache:
        """Keys [num_blocks, kv_heads, head_size, block_size], values [num_blocks, kv_heads, block_size, head_size]."""
        if keys.dtype not in CACHE_FORMATS or values.dtype != keys.dtype:
            raise ValueError(f"a cache must be float32, float16 or bfloat16, got {keys.dtype} and {values.dtype}.")
        if keys.dim() != 4 or values.shape != (*keys.shape[:2], keys.shape[3], keys.shape[2]):
            raise ValueError(f"keys and values do not fit together: {list(keys.shape)} and {list(values.shape)}.")
        if not (keys.is_contiguous() and values.is_contiguous()):
            raise ValueError("a cache must be contiguous.")
        return cls(keys.data_ptr(), values.data_ptr(), CACHE_FORMATS[keys.dtype], keys.shape[3])


class _Layer(ctypes.Structure):
    _fields_ = (
        ("qkv", Matrix),
        ("output", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("input_norm", ctypes.c_void_p),
        ("post_norm", ctypes.c_void_p),
        ("query_norm", ctypes.c_void_p),
        ("key_norm", ctypes.c_void_p),
        ("heads", Heads),
        ("cache", Cache),
        ("eps", ctypes.c_float),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        ("query_start", ctypes.c_void_p),
        ("seq_lens", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("tile_request", ctypes.c_void_p),
        ("tile_first", ctypes.c_void_p),
        ("tile_queries", ctypes.c_void_p),
        ("tokens", ctypes.c_int32),
        ("tiles", ctypes.c_int32),
        ("table_stride", ctypes.c_int32),
    )


class _Angles(ctypes.Structure):
    _fields_ = (("cos", ctypes.c_void_p), ("sin", ctypes.c_void_p))


class Step:
    """A super-sequence, laid out for the kernels: where its tokens read and write, and the tiles of its attention.

    Args:
        block_tables: [requests, max_blocks] integers.
        query_start_loc: [requests + 1] integers.
        seq_lens: [requests] integers: keys of each request, this step's included.
        slots: [tokens] int64: block × block_size + offset, or negative for a token that is written nowhere.
        group: query heads that share a KV head.
    """

    def __init__(
        self, block_tables: Tensor, query_start_loc: Tensor, seq_lens: Tensor, slots: Tensor, *, group: int
    ) -> None:
        starts = query_start_loc.numpy()
        request, first, size = _tiles(starts, max(1, _TILE_ROWS // group))
        vectors = starts, seq_lens.numpy(), request, first, size
        flat = np.concatenate(vectors, dtype=np.int32, casting="same_kind")
        ends = accumulate((len(vector) * flat.itemsize for vector in vectors), initial=flat.ctypes.data)
        at_starts, at_seq_lens, at_request, at_first, at_size, _ = ends
        tables, slots = block_tables.to(torch.int32).contiguous(), slots.contiguous()
        self.num_tokens = int(starts[-1])
        self._kept = flat, tables, slots  # the structure holds their addresses
        self.struct = _Step(
            at_starts,
            at_seq_lens,
            tables.data_ptr(),
            slots.data_ptr(),
            at_request,
            at_first,
            at_size,
            self.num_tokens,
            len(request),
            tables.stride(0),
        )


def _tiles(starts: NDArray[np.int64], queries: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """No more than so many queries of one request each: its request, its first token, its number of queries."""
    lengths = np.diff(starts)
    if lengths.size and lengths.min() >= 1 and lengths.max() <= queries:
        return np.arange(len(lengths)), starts[:-1], lengths
    counts = -(-lengths // queries)
    request = np.arange(len(lengths)).repeat(counts)
    place = np.arange(len(request)) - (counts.cumsum() - counts).repeat(counts)
    first = starts[request] + place * queries
    return request, first, np.minimum(queries, starts[request + 1] - first)


class LayerWeights(NamedTuple):
    """The parameters of one decoder layer; norms are float32."""

    qkv: PackedMatrix
    output: PackedMatrix
    gate_up: PackedMatrix
    """Of `interleave_gate_up`."""
    down: PackedMatrix
    input_norm: Tensor
    post_norm: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None
    eps: float


class DecoderLayers:
    """Layers of one shape over their parts of the cache: norm, attention and SwiGLU, added to the residual stream.

    Args:
        layers: the weights of each, the shape of its attention, and its part of the KV cache; whoever owns that memory
            keeps it alive.
        after: what is multiplied after the last of them: its weights are fetched in time.
    """

    def __init__(self, layers: Sequence[tuple[LayerWeights, Heads, Cache]], after: PackedMatrix) -> None:
        self._kept = (layers, after)
        self._layers = [_layer(*layer) for layer in layers]
        self.pointers = _pointers(self._layers)

    def workspace_floats(self, num_tokens: int) -> int:
        """Floats of working memory that a call over so many tokens needs."""
        return int(_functions().workspace(self.pointers[0], num_tokens, torch.get_num_threads()))

    def __call__(self, residual: Tensor, cos: Tensor, sin: Tensor, steps: Sequence[Step]) -> None:
        """Run all layers in place.

        Args:
            residual: [num_tokens, hidden_size] float32.
            cos, sin: [num_tokens, head_size / 2] float32 of the tokens' angles.
            steps: of each layer's KV cache group.
        """
        angles = _Angles(cos.data_ptr(), sin.data_ptr())
        workspace = torch.empty(self.workspace_floats(residual.shape[0]), dtype=torch.float32)
        _functions().layers(
            self.pointers,
            _pointers([step.struct for step in steps]),
            len(self._layers),
            ctypes.byref(angles),
            ctypes.byref(self._kept[1].struct),
            residual.data_ptr(),
            workspace.data_ptr(),
            torch.get_num_threads(),
        )


def _layer(weights: LayerWeights, heads: Heads, cache: Cache) -> _Layer:
    return _Layer(
        weights.qkv.struct,
        weights.output.struct,
        weights.gate_up.struct,
        weights.down.struct,
        weights.input_norm.data_ptr(),
        weights.post_norm.data_ptr(),
        None if weights.query_norm is None else weights.query_norm.data_ptr(),
        None if weights.key_norm is None else weights.key_norm.data_ptr(),
        heads,
        cache,
        weights.eps,
    )


def _pointers(structures: Sequence[ctypes.Structure]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(structures))(*map(ctypes.addressof, structures))


def linear(x: Tensor, matrix: PackedMatrix) -> Tensor:
    """[rows, features] float32 → [rows, columns] float32: x Wᵀ + b."""
    if x.dim() != 2 or x.shape[1] != matrix.features or x.dtype != torch.float32:
        raise ValueError(f"x must be float32 [rows, {matrix.features}], got {x.dtype} {list(x.shape)}.")
    x = x.contiguous()
    threads = torch.get_num_threads()
    y = torch.empty(x.shape[0], matrix.columns, dtype=torch.float32)
    corners = torch.empty(threads * matrix.features * panel_columns(), dtype=torch.float32)
    _functions().linear(
        ctypes.byref(matrix.struct), x.data_ptr(), x.shape[0], y.data_ptr(), corners.data_ptr(), threads
    )
    return y


def embedding(ids: Tensor, matrix: PackedMatrix) -> Tensor:
    """Rows of W, widened: [rows] int64 → [rows, features] float32."""
    y = torch.empty(ids.numel(), matrix.features, dtype=torch.float32)
    _functions().embedding(ctypes.byref(matrix.struct), ids.contiguous().data_ptr(), ids.numel(), y.data_ptr())
    return y


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[rows, size] float32 → the same, each row over its root mean square, times `weight` [size] float32."""
    x, y = x.contiguous(), torch.empty(x.shape, dtype=torch.float32)
    _functions().rms_norm(x.data_ptr(), weight.data_ptr(), x.shape[0], x.shape[1], eps, y.data_ptr())
    return y


def attention(query: Tensor, key: Tensor, value: Tensor, heads: Heads, cache: Cache, step: Step) -> Tensor:
    """Write the step's keys and values to the cache, then attend.

    Args:
        query: [num_tokens, query_heads, head_size].
        key, value: [num_tokens, kv_heads, head_size].

    Returns:
        [num_tokens, query_heads, head_size] float32.
    """
    query, key, value = (x.float().contiguous() for x in (query, key, value))
    output = torch.empty(query.shape, dtype=torch.float32)
    threads = torch.get_num_threads()
    pointers = ctypes.byref(heads), ctypes.byref(cache)
    corners = torch.empty(int(_functions().attention_workspace(*pointers, threads)), dtype=torch.float32)
    _functions().attention(
        *pointers,
        ctypes.byref(step.struct),
        query.data_ptr(),
        key.data_ptr(),
        value.data_ptr(),
        output.data_ptr(),
        corners.data_ptr(),
        threads,
    )
    return output


class _Functions(NamedTuple):
    layers: ctypes._NamedFuncPointer
    workspace: ctypes._NamedFuncPointer
    linear: ctypes._NamedFuncPointer
    embedding: ctypes._NamedFuncPointer
    rms_norm: ctypes._NamedFuncPointer
    attention: ctypes._NamedFuncPointer
    attention_workspace: ctypes._NamedFuncPointer


@functools.cache
def _functions() -> _Functions:
    compiled = library.load()
    at, integer = ctypes.c_void_p, ctypes.c_int32
    return _Functions(
        library.declared(compiled.decoder_layers, None, at, at, integer, at, at, at, at, integer),
        library.declared(compiled.decoder_layers_workspace, ctypes.c_int64, at, integer, integer),
        library.declared(compiled.linear, None, at, at, integer, at, at, integer),
        library.declared(compiled.embedding, None, at, at, integer, at),
        library.declared(compiled.rms_norm_all, None, at, at, integer, integer, ctypes.c_float, at),
        library.declared(compiled.attention, None, at, at, at, at, at, at, at, at, integer),
        library.declared(compiled.attention_workspace, ctypes.c_int64, at, at, integer),
    )
