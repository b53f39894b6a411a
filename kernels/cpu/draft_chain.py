"""A drafter on tensors: a pass over some tokens, and draft after draft, each the likeliest token; one call each."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.cpu import library
from kernels.cpu.operations import DecoderLayers, Step
from kernels.cpu.packing import PackedMatrix

#: In place of a draft, where there is none.
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
        ("confidence_threshold", ctypes.c_float),
    )


class Drafter:
    """What the kernels draft with.

    Args:
        embedding: [vocab_size, hidden_size].
        combine: [hidden_size, 2 × hidden_size]: makes one vector of a token's embedding and the state that it was
            drawn from; None: the embedding alone enters.
        layers: bound to the drafter's KV cache, in one group.
        norm: [hidden_size] float32.
        eps: of the norm.
        head: [draft_vocab_size, hidden_size].
        target_ids: [draft_vocab_size] int64: the tokens that the rows of the head stand for; None: their own numbers.
        angles: cos and sin, [positions, head_size / 2] float32 each.
    """

    def __init__(
        self,
        embedding: PackedMatrix,
        combine: PackedMatrix | None,
        layers: DecoderLayers,
        norm: Tensor,
        eps: float,
        head: PackedMatrix,
        target_ids: Tensor | None,
        angles: tuple[Tensor, Tensor],
    ) -> None:
        # The structure holds the addresses of all of them.
        self._kept = embedding, combine, layers, norm, head, target_ids, angles
        self.layers = layers
        self.hidden_size = embedding.features
        self.struct = _Drafter(
            ctypes.addressof(embedding.struct),
            None if combine is None else ctypes.addressof(combine.struct),
            ctypes.addressof(head.struct),
            ctypes.addressof(layers.pointers),
            norm.data_ptr(),
            *(angle.data_ptr() for angle in angles),
            None if target_ids is None else target_ids.data_ptr(),
            len(layers.pointers),
            eps,
        )


def draft_pass(drafter: Drafter, input_ids: Tensor, positions: Tensor, states: Tensor, step: Step) -> Tensor:
    """The drafter's states behind some tokens.

    Args:
        drafter: who drafts.
        input_ids: [num_tokens] int64.
        positions: [num_tokens] int64.
        states: [num_tokens, hidden_size], what each token was drawn from; of no interest without `combine`.
        step: where keys and values are written and read.

    Returns:
        [num_tokens, hidden_size] float32, after the drafter's norm.
    """
    _check_rows(drafter, states, (torch.int64, torch.int64), input_ids, positions)
    threads = torch.get_num_threads()
    input_ids, positions, states = input_ids.contiguous(), positions.contiguous(), states.float().contiguous()
    output = torch.empty(states.shape, dtype=torch.float32)
    workspace = _workspace(drafter, len(states), threads)
    _functions().draft_pass(
        ctypes.byref(drafter.struct),
        ctypes.byref(step.struct),
        input_ids.data_ptr(),
        positions.data_ptr(),
        states.data_ptr(),
        output.data_ptr(),
        workspace.data_ptr(),
        threads,
    )
    return output


def draft_chain(
    drafter: Drafter,
    states: Tensor,
    first: Tensor,
    wanted: Tensor,
    block_tables: Tensor,
    confidence_threshold: float = 0.0,
) -> Tensor:
    """Draft for some requests: the likeliest token after each state, then that after the pass which runs it, and so on.

    Args:
        drafter: who drafts.
        states: [requests, hidden_size] float32, the drafter's, after its norm.
        first: [requests] int64: position at which the first draft is run.
        wanted: [requests] int64: drafts that each wants, at least one. All but the last are run, so their positions
            must have slots.
        block_tables: [requests, max_blocks] int32.
        confidence_threshold: nothing is drafted behind a draft whose probability is below it.

    Returns:
        [most wanted, requests] int64 token ids, `NOTHING` behind a request's last draft, and where the largest logit
        is not finite.

    Raises:
        ValueError: shapes that contradict each other, or other dtypes.
    """
    _check_rows(drafter, states, (torch.int64, torch.int64, torch.int32), first, wanted, block_tables)
    first, wanted, block_tables = first.contiguous(), wanted.contiguous(), block_tables.contiguous()
    asked = _Requests(
        first.data_ptr(),
        wanted.data_ptr(),
        block_tables.data_ptr(),
        block_tables.stride(0),
        len(states),
        confidence_threshold,
    )
    count, threads = int(wanted.max()), torch.get_num_threads()
    states = states.float().clone(memory_format=torch.contiguous_format)
    drafts = torch.full((count, len(states)), NOTHING, dtype=torch.int64)
    workspace = _workspace(drafter, len(states), threads)
    _functions().draft_chain(
        ctypes.byref(drafter.struct),
        ctypes.byref(asked),
        count,
        states.data_ptr(),
        drafts.data_ptr(),
        workspace.data_ptr(),
        threads,
    )
    return drafts


def _check_rows(drafter: Drafter, states: Tensor, dtypes: Sequence[torch.dtype], *others: Tensor) -> None:
    """The kernels are given addresses: what they find there must be what they expect.

    Raises:
        ValueError: it is not.
    """
    if states.dim() != 2 or states.shape[1] != drafter.hidden_size:
        raise ValueError(f"states must be [rows, {drafter.hidden_size}], got {list(states.shape)}.")
    for other, dtype in zip(others, dtypes, strict=True):
        if other.shape[:1] != states.shape[:1] or other.dtype != dtype:
            raise ValueError(
                f"beside {len(states)} rows of states there must be as many of {dtype}, got {other.dtype} "
                f"{list(other.shape)}."
            )


def _workspace(drafter: Drafter, num_tokens: int, threads: int) -> Tensor:
    return torch.empty(
        int(_functions().workspace(ctypes.byref(drafter.struct), num_tokens, threads)), dtype=torch.float32
    )


class _Functions(NamedTuple):
    draft_pass: ctypes._NamedFuncPointer
    draft_chain: ctypes._NamedFuncPointer
    workspace: ctypes._NamedFuncPointer


@functools.cache
def _functions() -> _Functions:
    compiled = library.load()
    at, integer = ctypes.c_void_p, ctypes.c_int32
    return _Functions(
        library.declared(compiled.draft_pass, None, at, at, at, at, at, at, at, integer),
        library.declared(compiled.draft_chain, None, at, at, integer, at, at, at, integer),
        library.declared(compiled.draft_workspace, ctypes.c_int64, at, integer, integer),
    )
