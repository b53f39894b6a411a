"""A drafter's chain on tensors: draft after draft, each the likeliest token, in one call."""

from __future__ import annotations

import ctypes
import functools
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.cpu import library
from kernels.cpu.operations import DecoderLayers
from kernels.cpu.packing import PackedMatrix

#: In place of a draft, where no logit is finite.
NOTHING = -1


class _Drafter(ctypes.Structure):
    _fields_ = (
        ("embedding", ctypes.c_void_p),
        ("combine", ctypes.c_void_p),
        ("head", ctypes.c_void_p),
        ("layers", ctypes.c_void_p),
        ("norm", ctypes.c_void_p),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("target_ids", ctypes.c_void_p),
        ("num_layers", ctypes.c_int32),
        ("eps", ctypes.c_float),
    )


class _Requests(ctypes.Structure):
    _fields_ = (
        ("first", ctypes.c_void_p),
        ("wanted", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("table_stride", ctypes.c_int32),
        ("requests", ctypes.c_int32),
    )


class ChainWeights(NamedTuple):
    """What a drafter is made of; all tensors are contiguous."""

    embedding: PackedMatrix
    """[vocab_size, hidden_size]."""
    combine: PackedMatrix | None
    """[hidden_size, 2 × hidden_size]: makes one vector of a draft's embedding and the state that it was drawn from;
    None: the embedding alone enters."""
    layers: DecoderLayers
    """Bound to the drafter's KV cache, in one group."""
    norm: Tensor
    """[hidden_size] float32."""
    eps: float
    head: PackedMatrix
    """[draft_vocab_size, hidden_size]."""
    target_ids: Tensor | None
    """[draft_vocab_size] int64: the tokens that the rows of the head stand for; None: their own numbers."""
    cos: Tensor
    """[positions, head_size / 2] float32."""
    sin: Tensor


def draft_chain(weights: ChainWeights, states: Tensor, first: Tensor, wanted: Tensor, block_tables: Tensor) -> Tensor:
    """Draft for some requests: the likeliest token after each state, then that after the pass which runs it, and so on.

    Args:
        weights: the drafter.
        states: [requests, hidden_size] float32, the drafter's, after its norm.
        first: [requests] int64: position at which the first draft is run.
        wanted: [requests] int64: drafts that each wants, at least one. All but the last are run, so their positions
            must have slots.
        block_tables: [requests, max_blocks] int32.

    Returns:
        [most wanted, requests] int64 token ids, `NOTHING` where no logit is finite. What a request does not want, or
        has behind `NOTHING`, means nothing.

    Raises:
        ValueError: shapes that contradict each other.
    """
    requests = states.shape[:1]
    if states.dim() != 2 or not first.shape == wanted.shape == block_tables.shape[:1] == requests:
        raise ValueError(
            f"states must be [requests, hidden_size] and first, wanted and block_tables [requests, …], got "
            f"{list(states.shape)}, {list(first.shape)}, {list(wanted.shape)} and {list(block_tables.shape)}."
        )
    run, workspace_floats = _functions()
    drafter = _Drafter(
        ctypes.addressof(weights.embedding.struct),
        None if weights.combine is None else ctypes.addressof(weights.combine.struct),
        ctypes.addressof(weights.head.struct),
        ctypes.addressof(weights.layers.pointers),
        weights.norm.data_ptr(),
        weights.cos.data_ptr(),
        weights.sin.data_ptr(),
        None if weights.target_ids is None else weights.target_ids.data_ptr(),
        len(weights.layers.pointers),
        weights.eps,
    )
    first, wanted, block_tables = first.contiguous(), wanted.contiguous(), block_tables.contiguous()
    asked = _Requests(first.data_ptr(), wanted.data_ptr(), block_tables.data_ptr(), block_tables.stride(0), len(states))
    count, threads = int(wanted.max()), torch.get_num_threads()
    states = states.float().clone(memory_format=torch.contiguous_format)
    drafts = torch.empty(count, len(states), dtype=torch.int64)
    workspace = torch.empty(workspace_floats(ctypes.byref(drafter), len(states), threads))
    run(
        ctypes.byref(drafter),
        ctypes.byref(asked),
        count,
        states.data_ptr(),
        drafts.data_ptr(),
        workspace.data_ptr(),
        threads,
    )
    return drafts


@functools.cache
def _functions() -> tuple[ctypes._NamedFuncPointer, ctypes._NamedFuncPointer]:
    compiled = library.load()
    at, integer = ctypes.c_void_p, ctypes.c_int32
    run, workspace_floats = compiled.draft_chain, compiled.draft_chain_workspace
    run.restype, run.argtypes = None, (at, at, integer, at, at, at, integer)
    workspace_floats.restype, workspace_floats.argtypes = ctypes.c_int64, (at, integer, integer)
    return run, workspace_floats
