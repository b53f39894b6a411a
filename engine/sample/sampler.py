"""The sampler: one token per row of logits, each row by its own parameters.

The order of a row: what its request hides or favours, custom logits processors, penalties; a greedy row then takes the
largest logit. A random row goes on: divide by temperature, min-p, top-k, top-p, then the Gumbel-max trick: the largest
of logit plus Gumbel noise is a sample of the softmax. The noise is a function of the request's seed and of how many
tokens it has put out, so neither the rest of the batch nor a preemption changes what a request gets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.sample.logits_processors import ConstrainedRow
from engine.sample.penalties import Penalties
from kernels.gumbel_sampling import argmax, gumbel_max
from kernels.philox import Stream
from kernels.top_k_top_p import mask_min_p, mask_top_k_top_p


class SamplingMetadata(NamedTuple):
    """The parameters of the rows of a batch, one entry per row. All tensors are on the device of the logits."""

    temperature: Tensor
    """[rows] float32; 0 marks a greedy row."""
    top_k: Tensor
    """[rows] int64; 0 or less keeps every token."""
    top_p: Tensor
    """[rows] float32."""
    min_p: Tensor
    """[rows] float32."""
    seeds: Tensor
    """[rows] int64, two's complement of the unsigned 64-bit seed."""
    output_positions: Tensor
    """[rows] int64: output tokens the request had before this one."""
    random_rows: Tensor
    """[random rows] int64: the rows with a temperature."""
    any_min_p: bool
    any_top_k_top_p: bool
    constrained: Sequence[ConstrainedRow] = ()
    """The rows whose requests do something to their logits; usually none."""
    penalties: Penalties | None = None
    """None if no row has any."""

    @classmethod
    def greedy(cls) -> SamplingMetadata:
        """Of rows that all take their largest logit, as it is: there is nothing to tell of them."""
        return _GREEDY

    @property
    def all_greedy(self) -> bool:
        """Whether no row needs a random number."""
        return self.random_rows.numel() == 0

    @property
    def takes_largest(self) -> bool:
        """Whether every row takes its largest logit, as it is."""
        return self.all_greedy and not self.constrained and self.penalties is None

    def random(self) -> SamplingMetadata:
        """The parameters of the random rows alone."""
        rows = self.random_rows
        return self._replace(
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            min_p=self.min_p[rows],
            seeds=self.seeds[rows],
            output_positions=self.output_positions[rows],
            random_rows=torch.arange(rows.numel(), device=rows.device),
            constrained=(),
            penalties=None,
        )


_NONE = torch.empty(0)
_GREEDY = SamplingMetadata(_NONE, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, any_min_p=False, any_top_k_top_p=False)


def process_logits(logits: Tensor, metadata: SamplingMetadata) -> Tensor:
    """What the requests make of the model's logits before temperature: constraints, custom processors, penalties.

    Args:
        logits: [rows, vocab_size] float32, as the model gave them; left as they are.
        metadata: parameters of the same rows.

    Returns:
        [rows, vocab_size] float32; the same tensor if there is nothing to do.
    """
    if not metadata.constrained and metadata.penalties is None:
        return logits
    logits = logits.clone()
    for row in metadata.constrained:
        row.apply(logits)
    if metadata.penalties is not None:
        metadata.penalties.apply(logits)
    return logits


def why_unsampled(largest: Tensor) -> dict[int, str]:
    """The rows from which no token can be drawn, and why.

    Args:
        largest: [rows] float32 on the CPU, the maximum of each row of what `process_logits` returned; NaN if it holds
            one.
    """
    return {
        row: "No token may be sampled: every one is masked." if value == -math.inf else "The logits are not finite."
        for row, value in enumerate(largest.tolist())
        if not math.isfinite(value)
    }


def sample(logits: Tensor, metadata: SamplingMetadata) -> Tensor:
    """Choose one token per row.

    Args:
        logits: [rows, vocab_size] float32, as `process_logits` returns them.
        metadata: parameters of the same rows.

    Returns:
        [rows] int64 token ids.
    """
    if metadata.all_greedy:
        return argmax(logits)
    temperature = metadata.temperature
    if metadata.any_min_p or metadata.any_top_k_top_p:
        rows = metadata.random_rows
        logits = logits.index_copy(0, rows, truncated_logits(logits[rows], metadata.random()))
        temperature = (temperature > 0).float()  # what is divided by it already is not again
    return gumbel_max(logits, temperature, metadata.seeds, metadata.output_positions, Stream.TARGET)


def truncated_logits(logits: Tensor, metadata: SamplingMetadata) -> Tensor:
    """Logits over temperature, -inf where min-p, top-k or top-p hide a token: their softmax is what is sampled from.

    Args:
        logits: [rows, vocab_size] float32, of random rows.
        metadata: parameters of the same rows.
    """
    logits = logits / metadata.temperature[:, None]
    if metadata.any_min_p:
        logits = mask_min_p(logits, metadata.min_p)
    if metadata.any_top_k_top_p:
        logits = mask_top_k_top_p(logits, metadata.top_k, metadata.top_p)
    return logits
