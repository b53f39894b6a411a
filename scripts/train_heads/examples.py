"""What a head learns from: texts with the target's states, in batches of whole texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scripts.train_heads.prompts import is_held_out
from scripts.train_heads.texts import Text

#: Batches whose texts are sorted by length among themselves.
_SORTED_TOGETHER = 16


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts side by side, padded at the end with token 0 and states of 0."""

    token_ids: Tensor
    """[texts, length] int64."""
    states: Tensor
    """[texts, length, hidden_size] float32: the target's, after its last norm."""
    answers: Tensor
    """[texts, length] bool: the tokens that the target wrote."""


class Examples:
    """Texts and their states.

    Args:
        texts: in the order of the states.
        states: [tokens, hidden_size] float16, text after text.
    """

    def __init__(self, texts: Sequence[Text], states: NDArray[np.float16]) -> None:
        self._texts, self._states = texts, states
        self._ends = np.cumsum([len(text.token_ids) for text in texts])
        self._learned = [at for at, text in enumerate(texts) if not is_held_out(text.number)]
        self._held_out = [at for at, text in enumerate(texts) if is_held_out(text.number)]

    def batches(self, size: int, seed: int) -> Iterator[Batch]:
        """One round over what is learned from, in an order drawn from `seed`.

        Texts of about one length go together, so that little is padding.
        """
        draws = torch.Generator().manual_seed(seed)
        order = [self._learned[at] for at in torch.randperm(len(self._learned), generator=draws).tolist()]
        batches = []
        together = size * _SORTED_TOGETHER
        for begin in range(0, len(order), together):
            group = sorted(order[begin : begin + together], key=lambda at: len(self._texts[at].token_ids))
            batches += [group[first : first + size] for first in range(0, len(group), size)]
        for number in torch.randperm(len(batches), generator=draws).tolist():
            yield self._batch(batches[number])

    def held_out(self) -> Iterator[Batch]:
        """The texts that are kept for measuring, one at a time."""
        for at in self._held_out:
            yield self._batch([at])

    def num_batches(self, size: int) -> int:
        """Of one round."""
        return -(-len(self._learned) // size)

    def most_frequent(self, number: int) -> Tensor:
        """[number] int64, ascending: the tokens that the target wrote most often, and then the lowest ids."""
        counts = Counter(token_id for at in self._learned for token_id in self._texts[at].answer)
        by_frequency = [token_id for token_id, _ in counts.most_common()]
        unseen = [token_id for token_id in range(number) if token_id not in counts]
        return torch.tensor(sorted([*by_frequency, *unseen][:number]))

    def coverage(self, token_ids: Tensor) -> float:
        """Share of the tokens of held-out answers that are among `token_ids`."""
        known = set(token_ids.tolist())
        written = [token_id for at in self._held_out for token_id in self._texts[at].answer]
        return sum(token_id in known for token_id in written) / max(1, len(written))

    def _batch(self, places: list[int]) -> Batch:
        texts = [self._texts[at] for at in places]
        length = max(len(text.token_ids) for text in texts)
        token_ids = torch.zeros(len(texts), length, dtype=torch.int64)
        states = torch.zeros(len(texts), length, self._states.shape[1])
        answers = torch.zeros(len(texts), length, dtype=torch.bool)
        for row, (at, text) in enumerate(zip(places, texts, strict=True)):
            size = len(text.token_ids)
            token_ids[row, :size] = torch.tensor(text.token_ids)
            answers[row, len(text.prompt) : size] = True
            states[row, :size] = torch.from_numpy(self._states[self._ends[at] - size : self._ends[at]].astype("f4"))
        return Batch(token_ids, states, answers)
