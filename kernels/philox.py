"""Philox 4×32-10, the counter-based random numbers of all sampling (Salmon et al., "Parallel random numbers: as easy
as 1, 2, 3", SC 2011; the authors' library is Random123).

A counter of four 32-bit words and a key of two go through ten rounds of multiplication and exclusive or, and come out
as four random words. There is no state: the noise of a token is a function of where it is used::

    key      = (seed low, seed high)                           the request's 64-bit seed
    counter  = (token // 4, output position, stream, 0)        token: the vocabulary index
    noise    = word token % 4 of the result

so a request meets the same noise alone or in a batch, after a preemption, and on every device, and the noise of a few
tokens can be had without that of the others.
"""

from __future__ import annotations

import enum

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

#: Counters that are taken through the rounds together: few enough for their words to stay in cache.
_TILE = 1 << 15


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
    rows = seeds.numel()
    quads = -(-vocab_size // 4)
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
    tail, key = _keyed(seeds[:, None], positions[:, None], stream)
    quads = torch.stack(philox_4x32_10((tokens >> 2, *tail), key), dim=-1)
    return _to_unit_interval(quads.gather(-1, (tokens & 3)[..., None]).squeeze(-1))


def gumbel(uniforms: Tensor) -> Tensor:
    """Standard Gumbel noise −log(−log u): the argmax of logits plus this noise is a sample of their softmax."""
    return uniforms.log().neg_().log_().neg_()


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
