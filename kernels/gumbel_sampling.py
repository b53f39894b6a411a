"""Sampling by the Gumbel-max trick (Gumbel, 1954; Maddison et al., 2014): with G_t = −log(−log U_t) independent,

    argmax_t (l(t) / T + G_t)   is a sample of   softmax(l / T)

so that no softmax, no sum and no sorted order is needed, and a greedy row is the same without the noise. U comes from
Philox by seed, output position and token, so a row draws the same wherever it stands.

In Triton the vocabulary of a row is cut into blocks; each program makes the noise of its block in registers and leaves
the best token of it, and the best of these is the row's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.jit import cdiv, jit, runs_on_triton
from kernels.philox import Stream, gumbel, gumbel_block, uniform, uniform_at
from kernels.specimen import Specimen

if TYPE_CHECKING:
    import triton.language as tl

#: Noise for a few visible tokens is drawn for them alone; above this share of the vocabulary all of it is cheaper,
#: since four neighbours share one call of Philox.
_SPARSE_SHARE = 1 / 16

_BLOCK = 1024


def gumbel_max(logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, stream: Stream) -> Tensor:
    """Draw one token per row.

    Args:
        logits: [rows, vocab_size] float32; -inf marks what is hidden.
        temperature: [rows] float32; 0 marks a greedy row, which takes its largest logit.
        seeds: [rows] int64, two's complement of the unsigned 64-bit seed.
        positions: [rows] int64, output tokens the request had before this one.
        stream: what the noise is for.

    Returns:
        [rows] int64 token ids; of equal scores the first one wins. A row without a finite logit gets some token.

    Raises:
        ValueError: shapes that contradict each other.
    """
    rows = logits.shape[:1]
    if logits.dim() != 2 or not temperature.shape == seeds.shape == positions.shape == rows:
        raise ValueError(
            "logits must be [rows, vocab_size] and temperature, seeds and positions [rows], got "
            f"{list(logits.shape)}, {list(temperature.shape)}, {list(seeds.shape)} and {list(positions.shape)}."
        )
    draw = gumbel_max_triton if runs_on_triton(logits) else gumbel_max_reference
    return draw(logits, temperature, seeds, positions, stream)


def argmax(logits: Tensor) -> Tensor:
    """The greedy choice: [rows, vocab_size] float32 → [rows] int64, the first of the largest; NaN is the largest."""
    if logits.is_cuda:
        return logits.argmax(dim=-1)
    # numpy compares with vector instructions: ten times as fast as torch's argmax on a CPU.
    return torch.from_numpy(logits.numpy().argmax(axis=-1))


def gumbel_max_reference(
    logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, stream: Stream
) -> Tensor:
    """`gumbel_max` in torch."""
    tokens = argmax(logits)
    random = torch.nonzero(temperature > 0).flatten()
    if random.numel():
        scaled = logits[random] / temperature[random, None]
        tokens[random] = _perturbed_argmax(scaled, seeds[random], positions[random], stream)
    return tokens


def _perturbed_argmax(logits: Tensor, seeds: Tensor, positions: Tensor, stream: Stream) -> Tensor:
    vocab_size = logits.shape[-1]
    most_visible = int((logits > float("-inf")).sum(dim=-1).max())
    if not 0 < most_visible <= vocab_size * _SPARSE_SHARE:
        return argmax(gumbel(uniform(seeds, positions, stream, vocab_size)).add_(logits))
    # In the order of the vocabulary, so that equal scores fall to the same token on either way.
    visible = logits.topk(most_visible, dim=-1, sorted=False).indices.sort(dim=-1).values
    noise = gumbel(uniform_at(seeds, positions, stream, visible))
    best = noise.add_(logits.gather(-1, visible)).argmax(dim=-1, keepdim=True)
    return visible.gather(-1, best).squeeze(-1)


def gumbel_max_triton(logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, stream: Stream) -> Tensor:
    """`gumbel_max` in Triton."""
    rows, vocab_size = logits.shape
    splits = cdiv(vocab_size, _BLOCK)
    best = torch.empty(rows, splits, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(rows, splits, dtype=torch.int64, device=logits.device)
    if not rows:
        return tokens.new_empty(0)
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    _gumbel_max_kernel[(rows, splits)](
        best,
        tokens,
        logits,
        temperature.contiguous(),
        seeds.contiguous(),
        positions.contiguous(),
        logits.stride(0),
        vocab_size,
        splits,
        STREAM=int(stream),
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return tokens.gather(1, best.argmax(dim=1, keepdim=True)).squeeze(1)


@jit
def _gumbel_max_kernel(
    best: tl.tensor,
    tokens: tl.tensor,
    logits: tl.tensor,
    temperature: tl.tensor,
    seeds: tl.tensor,
    positions: tl.tensor,
    logits_stride: int,
    vocab_size: int,
    splits: int,
    STREAM: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    first = split * BLOCK
    token = first + tl.arange(0, BLOCK)
    score = tl.load(logits + row * logits_stride + token, mask=token < vocab_size, other=float("-inf"))
    scale = tl.load(temperature + row)
    if scale > 0:
        noise = gumbel_block(tl.load(seeds + row), tl.load(positions + row), STREAM, first, BLOCK)
        score = tl.div_rn(score, scale) + noise
    value, at = tl.max(score, axis=0, return_indices=True)
    tl.store(best + row * splits + split, value)
    # NaN compares with nothing and may win from behind the vocabulary.
    tl.store(tokens + row * splits + split, tl.minimum(first + at, vocab_size - 1).to(tl.int64))


def specimens() -> list[Specimen]:
    """1024 tokens of a row."""
    signature = {"best": "*fp32", "tokens": "*i64", "logits": "*fp32", "temperature": "*fp32"}
    signature |= {"seeds": "*i64", "positions": "*i64"}
    signature |= {"logits_stride": "i32:16", "vocab_size": "i32:16", "splits": "i32"}
    return [
        Specimen(
            "gumbel_max",
            _gumbel_max_kernel,
            signature,
            {"STREAM": int(Stream.TARGET), "BLOCK": _BLOCK},
            num_warps=4,
            num_stages=2,
            flops=(100 / 4 + 6) * _BLOCK,
            bytes=4 * _BLOCK,
        )
    ]
