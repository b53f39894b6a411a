"""The rows of a step that have penalties, with the tokens that these look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.penalties import apply_penalties, token_counts


class Penalties(NamedTuple):
    """Presence, frequency and repetition penalties. All tensors are on the device of the logits."""

    rows: Tensor
    """[p] int64: the rows of the logits that have any."""
    presence: Tensor
    """[p] float32, as are the next two."""
    frequency: Tensor
    repetition: Tensor
    prompt_token_ids: Tensor
    """[p, longest prompt] int64, padded with the size of the vocabulary."""
    output_token_ids: Tensor
    """[p, longest output] int64, likewise."""

    def apply(self, logits: Tensor) -> None:
        """Penalise in place: logits are [rows, vocab_size] float32."""
        vocab_size = logits.shape[-1]
        logits[self.rows] = apply_penalties(
            logits[self.rows],
            token_counts(self.prompt_token_ids, vocab_size),
            token_counts(self.output_token_ids, vocab_size),
            self.presence,
            self.frequency,
            self.repetition,
        )


def pad(token_ids: Sequence[NDArray[np.int32]], padding: int, device: torch.device) -> Tensor:
    """Rows of different lengths as one tensor, [rows, longest] int64."""
    longest = max(map(len, token_ids))
    padded = np.full((len(token_ids), longest), padding, dtype=np.int64)
    for row, ids in zip(padded, token_ids, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(padded).to(device)
