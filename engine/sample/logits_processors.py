"""What a request may do to its logits before a token is drawn: hide tokens, favour some, or run code of its own.

Built in are `allowed_token_ids`, `bad_words`, `logit_bias` and the tokens that `min_tokens` hides. For anything else an
engine can be given custom processors, which see the logits after the built-in ones and before the penalties::

    class NeverTwice:
        '''Hides the token that was put out last, for requests with extra_args={"never_twice": True}.'''

        def validate_params(self, sampling_params):
            if not isinstance((sampling_params.extra_args or {}).get("never_twice", False), bool):
                raise RequestError("never_twice must be True or False.")

        def new_req_logits_processor(self, sampling_params):
            return hide_last if (sampling_params.extra_args or {}).get("never_twice") else None

    def hide_last(prompt_token_ids, output_token_ids, logits):
        if output_token_ids:
            logits[output_token_ids[-1]] = -math.inf
        return logits

    llm = LLM("orrery-tiny", logits_processors=[NeverTwice()])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.sampling_params import SamplingParams

#: Takes prompt token ids, output token ids so far, and the row's logits [vocab_size] float32, which it may change;
#: returns the logits to go on with. What it does must depend on these alone: a request that was preempted, or runs in
#: other company, must get the same.
RequestLogitsProcessor = Callable[[list[int], list[int], Tensor], Tensor]


class LogitsProcessor(Protocol):
    """A custom logits processor, one for all requests of an engine."""

    def validate_params(self, sampling_params: SamplingParams) -> None:
        """Refuse parameters that it cannot work with, before the request is let in.

        Raises:
            RequestError: with one sentence that says what is allowed.
        """

    def new_req_logits_processor(self, sampling_params: SamplingParams) -> RequestLogitsProcessor | None:
        """What to do to the logits of a request; None if they are none of its business."""


class RequestConstraints:
    """What one request does to its logits at every step.

    Args:
        params: its parameters.
        eos_token_ids: the model's end-of-sequence tokens.
        vocab_size: tokens of the vocabulary.
        custom: what custom processors do to it.
        device: where the logits are.
    """

    def __init__(
        self,
        params: SamplingParams,
        eos_token_ids: Sequence[int],
        vocab_size: int,
        custom: Sequence[RequestLogitsProcessor],
        device: torch.device,
    ) -> None:
        self._forbidden: Tensor | None = None
        if params.allowed_token_ids is not None:
            self._forbidden = torch.ones(vocab_size, dtype=torch.bool, device=device)
            self._forbidden[list(params.allowed_token_ids)] = False
        self._bad_words = params.bad_words_token_ids
        biases = params.logit_bias or {}
        self._biased = torch.tensor(list(biases), dtype=torch.int64, device=device)
        self._biases = torch.tensor(list(biases.values()), dtype=torch.float32, device=device)
        self._min_tokens = params.min_tokens
        self._ends = [*eos_token_ids, *params.stop_token_ids] if params.min_tokens else []
        self._custom = custom

    @staticmethod
    def needed(params: SamplingParams) -> bool:
        """Whether the request does anything to its logits by its parameters alone."""
        return bool(
            params.allowed_token_ids is not None or params.bad_words_token_ids or params.logit_bias or params.min_tokens
        )

    def apply(self, logits: Tensor, prompt_token_ids: NDArray[np.int32], output_token_ids: NDArray[np.int32]) -> None:
        """Change the logits of its row, [vocab_size] float32, in place."""
        if self._forbidden is not None:
            logits.masked_fill_(self._forbidden, -math.inf)
        if self._biased.numel():
            logits[self._biased] += self._biases
        hidden = self._hidden_after(output_token_ids)
        if hidden:
            logits[hidden] = -math.inf
        if self._custom:
            prompt, output = prompt_token_ids.tolist(), output_token_ids.tolist()
            processed = logits
            for processor in self._custom:
                processed = processor(prompt, output, processed)
            logits.copy_(processed)

    def _hidden_after(self, output_token_ids: NDArray[np.int32]) -> list[int]:
        """Tokens that would complete a bad word, or end the output before its time."""
        hidden = [word[-1] for word in self._bad_words if _ends_with(output_token_ids, word[:-1])]
        return hidden + self._ends if len(output_token_ids) < self._min_tokens else hidden


class ConstrainedRow(NamedTuple):
    """A row of a step's logits that its request does something to."""

    row: int
    constraints: RequestConstraints
    prompt_token_ids: NDArray[np.int32]
    output_token_ids: NDArray[np.int32]

    def apply(self, logits: Tensor) -> None:
        """Change its row of logits [rows, vocab_size] in place."""
        self.constraints.apply(logits[self.row], self.prompt_token_ids, self.output_token_ids)


def _ends_with(token_ids: NDArray[np.int32], tail: tuple[int, ...]) -> bool:
    return not tail or (len(token_ids) >= len(tail) and tuple(token_ids[-len(tail) :].tolist()) == tail)
