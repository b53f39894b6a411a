"""A drafter on tensors: a pass over some tokens, and draft after draft, each the likeliest token; one call each."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.cpu import library
from kernels.cpu.operations import DecoderLayers, Step
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


class DrafterWeights(NamedTuple):
    """What a drafter is made of; all tensors are contiguous."""

    embedding: PackedMatrix
    """[vocab_size, hidden_size]."""
    combine: PackedMatrix | None
    """[hidden_size, 2 × hidden_size]: makes one vector of a token's embedding and the state that it was drawn from;
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

    def struct(self) -> _Drafter:
        """For the kernels; it holds the addresses of what is here."""
        return _Drafter(
            ctypes.addressof(self.embedding.struct),
            None if self.combine is None else ctypes.addressof(self.combine.struct),
            ctypes.addressof(self.head.struct),
            ctypes.addressof(self.layers.pointers),
            self.norm.data_ptr(),
            self.cos.data_ptr(),
            self.sin.data_ptr(),
            None if self.target_ids is None else self.target_ids.data_ptr(),
            len(self.layers.pointers),
            self.eps,
        )


def draft_pass(weights: DrafterWeights, input_ids: Tensor, positions: Tensor, states: Tensor, step: Step) -> Tensor:
    """The drafter's states behind some tokens.

    Args:
        weights: the drafter.
        input_ids: [num_tokens] int64.
        positions: [num_tokens] int64.
        states: [num_tokens, hidden_size], what each token was drawn from; of no interest without `combine`.
        step: where keys and values are written and read.

    Returns:
        [num_tokens, hidden_size] float32, after the drafter's norm.
    """
    _check_requests(states, input_ids, positions)
    drafter, threads = weights.struct(), torch.get_num_threads()
    input_ids, positions, states = input_ids.contiguous(), positions.contiguous(), states.float().contiguous()
    output = torch.empty(states.shape)
    workspace = _workspace(drafter, len(states), threads)
    _functions().draft_pass(
        ctypes.byref(drafter),
        ctypes.byref(step.struct),
        input_ids.data_ptr(),
        positions.data_ptr(),
        states.data_ptr(),
        output.data_ptr(),
        workspace.data_ptr(),
        threads,
    )
    return output


def draft_chain(weights: DrafterWeights, states: Tensor, first: Tensor, wanted: Tensor, block_tables: Tensor) -> Tensor:
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
    _check_requests(states, first, wanted, block_tables)
    drafter = weights.struct()
    first, wanted, block_tables = first.contiguous(), wanted.contiguous(), block_tables.contiguous()
    asked = _Requests(first.data_ptr(), wanted.data_ptr(), block_tables.data_ptr(), block_tables.stride(0), len(states))
    count, threads = int(wanted.max()), torch.get_num_threads()
    states = states.float().clone(memory_format=torch.contiguous_format)
    drafts = torch.empty(count, len(states), dtype=torch.int64)
    workspace = _workspace(drafter, len(states), threads)
    _functions().draft_chain(
        ctypes.byref(drafter),
        ctypes.byref(asked),
        count,
        states.data_ptr(),
        drafts.data_ptr(),
        workspace.data_ptr(),
        threads,
    )
    return drafts


def _check_requests(states: Tensor, *others: Tensor) -> None:
    if states.dim() != 2 or any(other.shape[:1] != states.shape[:1] for other in others):
        shapes = " and ".join(str(list(other.shape)) for other in others)
        raise ValueError(
            f"states must be [rows, hidden_size] and everything else [rows, …], got {shapes} beside "
            f"{list(states.shape)}."
        )


def _workspace(drafter: _Drafter, num_tokens: int, threads: int) -> Tensor:
    return torch.empty(int(_functions().workspace(ctypes.byref(drafter), num_tokens, threads)))


class _Functions(NamedTuple):
    draft_pass: ctypes._NamedFuncPointer
    draft_chain: ctypes._NamedFuncPointer
    workspace: ctypes._NamedFuncPointer


@functools.cache
def _functions() -> _Functions:
    compiled = library.load()
    at, integer = ctypes.c_void_p, ctypes.c_int32
    functions = _Functions(compiled.draft_pass, compiled.draft_chain, compiled.draft_workspace)
    signatures: tuple[tuple[Any, tuple[Any, ...]], ...] = (
        (None, (at, at, at, at, at, at, at, integer)),
        (None, (at, at, integer, at, at, at, integer)),
        (ctypes.c_int64, (at, integer, integer)),
    )
    for function, (result, arguments) in zip(functions, signatures, strict=True):
        function.restype, function.argtypes = result, arguments
    return functions
