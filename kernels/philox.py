"""Philox 4×32-10, the counter-based random numbers of all sampling (Salmon et al., "Parallel random numbers: as easy
as 1, 2, 3", SC 2011; the authors' library is Random123).

A counter of four 32-bit words and a key of two go through ten rounds of multiplication and exclusive or, and come out
as four random words. There is no state: the noise of a token is a function of where it is used::

    key      = (seed low, seed high)                           the request's 64-bit seed
    counter  = (token // 4, output position, stream, 0)        token: the vocabulary index
    noise    = word token % 4 of the result

so a request meets the same noise alone or in a batch, after a preemption, and on every device, and the noise of a few
tokens can be had without that of the others. The torch reference and the Triton kernels give the same bits.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.jit import cdiv, jit, runs_on_triton
from kernels.specimen import Specimen

if TYPE_CHECKING:
    import triton.language as tl

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

#: Counters that are taken through the rounds together: few enough for their words to stay in cache.
_TILE = 1 << 15

#: Tokens of one Triton program.
_BLOCK = 1024


class Stream(enum.IntEnum):
    """What a random number is for; numbers of different streams are independent."""

    TARGET = 0
    """Sampling from the model's own distribution."""
    DRAFT = 1
    """Sampling a draft token from the drafter's distribution."""
    ACCEPT = 2
    """Accepting or rejecting a draft token."""
    RECOVER = 3
    """Sampling in place of a rejected draft token."""


def philox_4x32_10(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Ten rounds of Philox 4×32.

    Args:
        counter: four words, int64 tensors that broadcast, values in [0, 2**32).
        key: two words, likewise.

    Returns:
        Four int64 tensors of the common shape, values in [0, 2**32).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # int64 wraps around, which leaves the 64 bits of the unsigned product; the mask undoes the sign's extension.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        high0, high1 = (product0 >> 32) & _MASK, (product1 >> 32) & _MASK
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, product1 & _MASK, high0 ^ c3 ^ k1, product0 & _MASK
        k0, k1 = (k0 + _KEY_INCREMENTS[0]) & _MASK, (k1 + _KEY_INCREMENTS[1]) & _MASK
    return torch.broadcast_tensors(c0, c1, c2, c3)


def uniform(seeds: Tensor, positions: Tensor, stream: Stream, vocab_size: int) -> Tensor:
    """One uniform number per row and vocabulary index, strictly between 0 and 1.

    Args:
        seeds: [rows] int64, the two's complement of the unsigned 64-bit seeds.
        positions: [rows] int64, number of output tokens before the one that is sampled.
        stream: what the numbers are for.
        vocab_size: numbers per row.

    Returns:
        [rows, vocab_size] float32, multiples of 2**-24.
    """
    _check_rows(seeds, positions)
    draw = uniform_triton if runs_on_triton(seeds) else uniform_reference
    return draw(seeds, positions, stream, vocab_size)


def uniform_reference(seeds: Tensor, positions: Tensor, stream: Stream, vocab_size: int) -> Tensor:
    """`uniform` in torch."""
    rows = seeds.numel()
    quads = cdiv(vocab_size, 4)
    words = torch.empty(rows, quads, 4, dtype=torch.float32, device=seeds.device)
    counter = torch.arange(quads, device=seeds.device)
    rows_per_tile = max(1, _TILE // quads)
    for row in range(0, rows, rows_per_tile):
        some_rows = slice(row, row + rows_per_tile)
        tail, key = _keyed(seeds[some_rows, None], positions[some_rows, None], stream)
        for quad in range(0, quads, _TILE):
            some_quads = slice(quad, quad + _TILE)
            for word, bits in enumerate(philox_4x32_10((counter[None, some_quads], *tail), key)):
                words[some_rows, some_quads, word] = _to_unit_interval(bits)
    return words.view(rows, quads * 4)[:, :vocab_size]


def uniform_at(seeds: Tensor, positions: Tensor, stream: Stream, tokens: Tensor) -> Tensor:
    """The numbers that `uniform` gives at some vocabulary indices only.

    Args:
        seeds, positions, stream: as in `uniform`.
        tokens: [rows, n] int64 vocabulary indices.

    Returns:
        [rows, n] float32.
    """
    _check_rows(seeds, positions)
    draw = uniform_at_triton if runs_on_triton(seeds) else uniform_at_reference
    return draw(seeds, positions, stream, tokens)


def uniform_at_reference(seeds: Tensor, positions: Tensor, stream: Stream, tokens: Tensor) -> Tensor:
    """`uniform_at` in torch."""
    tail, key = _keyed(seeds[:, None], positions[:, None], stream)
    quads = torch.stack(philox_4x32_10((tokens >> 2, *tail), key), dim=-1)
    return _to_unit_interval(quads.gather(-1, (tokens & 3)[..., None]).squeeze(-1))


def gumbel(uniforms: Tensor) -> Tensor:
    """Standard Gumbel noise −log(−log u): the argmax of logits plus this noise is a sample of their softmax."""
    return uniforms.log().neg_().log_().neg_()


def uniform_triton(seeds: Tensor, positions: Tensor, stream: Stream, vocab_size: int) -> Tensor:
    """`uniform` in Triton."""
    rows = seeds.numel()
    out = torch.empty(rows, vocab_size, dtype=torch.float32, device=seeds.device)
    if out.numel():
        _uniform_kernel[(rows, cdiv(vocab_size, _BLOCK))](
            out, seeds.contiguous(), positions.contiguous(), vocab_size, STREAM=int(stream), BLOCK=_BLOCK, num_warps=4
        )
    return out


def uniform_at_triton(seeds: Tensor, positions: Tensor, stream: Stream, tokens: Tensor) -> Tensor:
    """`uniform_at` in Triton."""
    rows, size = tokens.shape
    out = torch.empty(rows, size, dtype=torch.float32, device=seeds.device)
    if out.numel():
        _uniform_at_kernel[(rows, cdiv(size, _BLOCK))](
            out,
            seeds.contiguous(),
            positions.contiguous(),
            tokens.contiguous(),
            size,
            STREAM=int(stream),
            BLOCK=_BLOCK,
            num_warps=4,
        )
    return out


def _keyed(
    seeds: Tensor, positions: Tensor, stream: Stream
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The last three words of the counter, and the key."""
    zero = torch.zeros_like(positions)
    return (positions & _MASK, zero + int(stream), zero), (seeds & _MASK, (seeds >> 32) & _MASK)


def _to_unit_interval(bits: Tensor) -> Tensor:
    """24 bits fill a float32 exactly. Zero is folded into the least step, since its logarithm would be infinite."""
    return (bits >> 8).clamp_(min=1).to(torch.float32).mul_(2.0**-24)


def _check_rows(seeds: Tensor, positions: Tensor) -> None:
    if seeds.dim() != 1 or seeds.shape != positions.shape:
        raise ValueError(f"seeds and positions must be [rows], got {list(seeds.shape)} and {list(positions.shape)}.")


@jit
def philox(c0: tl.tensor, c1: tl.tensor, c2: tl.tensor, c3: tl.tensor, k0: tl.tensor, k1: tl.tensor) -> tuple:
    """`philox_4x32_10` inside a kernel; all words are uint32."""
    for _ in tl.static_range(10):
        high0, high1 = tl.umulhi(c0, 0xD2511F53), tl.umulhi(c2, 0xCD9E8D57)
        low0, low1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return c0, c1, c2, c3


@jit
def philox_of_quads(seed: tl.tensor, position: tl.tensor, STREAM: tl.constexpr, quad: tl.tensor) -> tuple:
    """The four words of each group of four tokens: `seed` and `position` are int64, `quad` token // 4."""
    k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    c0 = quad.to(tl.uint32)
    zero = tl.zeros_like(c0)
    return philox(c0, zero + position.to(tl.uint32), zero + STREAM, zero, k0, k1)


@jit
def to_unit_interval(bits: tl.tensor) -> tl.tensor:
    """Float32 strictly between 0 and 1 from random words."""
    return tl.maximum((bits >> 8).to(tl.int32), 1).to(tl.float32) * 5.9604644775390625e-08


@jit
def uniform_block(
    seed: tl.tensor, position: tl.tensor, STREAM: tl.constexpr, first: tl.tensor, BLOCK: tl.constexpr
) -> tl.tensor:
    """[BLOCK] float32: the numbers of the tokens from `first` on, a multiple of four."""
    quad = first // 4 + tl.arange(0, BLOCK // 4)
    w0, w1, w2, w3 = philox_of_quads(seed, position, STREAM, quad)
    return to_unit_interval(tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3)))


@jit
def gumbel_block(
    seed: tl.tensor, position: tl.tensor, STREAM: tl.constexpr, first: tl.tensor, BLOCK: tl.constexpr
) -> tl.tensor:
    """[BLOCK] float32: `gumbel` of `uniform_block`."""
    return -tl.log(-tl.log(uniform_block(seed, position, STREAM, first, BLOCK)))


@jit
def uniform_of_token(seed: tl.tensor, position: tl.tensor, STREAM: tl.constexpr, token: tl.tensor) -> tl.tensor:
    """Float32 in the shape of `token`: the numbers of some tokens."""
    w0, w1, w2, w3 = philox_of_quads(seed, position, STREAM, token // 4)
    word = token % 4
    return to_unit_interval(tl.where(word < 2, tl.where(word == 0, w0, w1), tl.where(word == 2, w2, w3)))


@jit
def _uniform_kernel(
    out: tl.tensor,
    seeds: tl.tensor,
    positions: tl.tensor,
    vocab_size: int,
    STREAM: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * BLOCK
    noise = uniform_block(tl.load(seeds + row), tl.load(positions + row), STREAM, first, BLOCK)
    token = first + tl.arange(0, BLOCK)
    tl.store(out + row * vocab_size + token, noise, mask=token < vocab_size)


@jit
def _uniform_at_kernel(
    out: tl.tensor,
    seeds: tl.tensor,
    positions: tl.tensor,
    tokens: tl.tensor,
    size: int,
    STREAM: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(tokens + row * size + at, mask=at < size, other=0)
    noise = uniform_of_token(tl.load(seeds + row), tl.load(positions + row), STREAM, token)
    tl.store(out + row * size + at, noise, mask=at < size)


def specimens() -> list[Specimen]:
    """Noise for 1024 tokens of a row, and for 1024 chosen ones."""
    rows = {"out": "*fp32", "seeds": "*i64", "positions": "*i64"}
    constexprs = {"STREAM": int(Stream.TARGET), "BLOCK": _BLOCK}
    # Per round four halves of products, four exclusive ors, and two additions to the key.
    one_call = 10.0 * _ROUNDS
    return [
        Specimen(
            "philox_uniform",
            _uniform_kernel,
            {**rows, "vocab_size": "i32:16"},
            constexprs,
            num_warps=4,
            num_stages=2,
            flops=one_call * _BLOCK / 4,
            bytes=4 * _BLOCK,
        ),
        Specimen(
            "philox_uniform_at",
            _uniform_at_kernel,
            {**rows, "tokens": "*i64", "size": "i32:16"},
            constexprs,
            num_warps=4,
            num_stages=2,
            flops=one_call * _BLOCK,
            bytes=12 * _BLOCK,
        ),
    ]
