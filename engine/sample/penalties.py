"""The rows of a step that have penalties, with the tokens that these look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.penalties import apply_penalties


class Penalties(NamedTuple):
    """Presence, frequency and repetition penalties. All tensors are on the device of the logits.

    Only tokens that have occurred are penalised, and they are few beside the vocabulary: so the logits of these alone
    are looked at. Rows with fewer of them than others name one of theirs several times.
    """

    rows: Tensor
    """[p] int64: the rows of the logits that have any."""
    presence: Tensor
    """[p] float32, as are the next two."""
    frequency: Tensor
    repetition: Tensor
    token_ids: Tensor
    """[p, n] int64: tokens that occurred."""
    prompt_counts: Tensor
    """[p, n] int32: how often the row's prompt holds them."""
    output_counts: Tensor
    """[p, n] int32: how often its output does."""

    def apply(self, logits: Tensor) -> None:
        """Penalise in place: logits are [rows, vocab_size] float32."""
        occurred = (self.rows[:, None], self.token_ids)
        logits[occurred] = apply_penalties(
            logits[occurred], self.prompt_counts, self.output_counts, self.presence, self.frequency, self.repetition
        )


def count_tokens(
    prompts: Sequence[NDArray[np.int32]], outputs: Sequence[NDArray[np.int32]], device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """`token_ids`, `prompt_counts` and `output_counts` of some rows, from the tokens of their prompts and outputs."""
    rows = [_count(prompt, output) for prompt, output in zip(prompts, outputs, strict=True)]
    width = max(row.shape[1] for row in rows)
    # Padding repeats the last token: whatever is done to it comes out the same.
    padded = np.stack([np.pad(row, ((0, 0), (0, width - row.shape[1])), mode="edge") for row in rows], axis=1)
    token_ids, prompt_counts, output_counts = torch.from_numpy(padded).to(device)
    return token_ids, prompt_counts.int(), output_counts.int()


def _count(prompt: NDArray[np.int32], output: NDArray[np.int32]) -> NDArray[np.int64]:
    """[3, n]: the tokens of one row, and how often prompt and output hold each."""
    tokens, places = np.unique(np.concatenate((prompt, output)), return_inverse=True)
    if not tokens.size:  # nothing has occurred: any token will do
        return np.zeros((3, 1), dtype=np.int64)
    in_prompt, in_output = places[: len(prompt)], places[len(prompt) :]
    counts = [np.bincount(part, minlength=tokens.size) for part in (in_prompt, in_output)]
    return np.stack((tokens, *counts)).astype(np.int64)
