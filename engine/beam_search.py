"""Beam search: the likeliest completions rather than sampled ones, built on an engine that knows nothing of it.

Every step extends every beam by one token: each beam is a request of one token that asks for the log probabilities of
the 2 × beam_width most likely ones. Of all extensions the `beam_width` best go on; one that ends the sequence is put
aside. Twice the width, so that enough remain even if half of them end it. Beams begin alike, so that the prefix cache
spares nearly all of each step's prompt::

    prompt ─┬─ the ─┬─ moon ─┬─ …
            │       └─ sea  ─┴─ …     at every step only the best beam_width of all extensions
            └─ a ───── small ── …
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from engine.frontend.prompts import PromptContent, TokensPrompt
from engine.outputs import RequestOutput
from engine.sampling_params import BeamSearchParams, SamplingParams

#: Runs prompts, all of them with the same parameters.
Generate = Callable[[list[TokensPrompt], SamplingParams], list[RequestOutput]]


class BeamSearchSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One beam, or one that has come to its end."""

    tokens: list[int]
    """Prompt and output."""
    cum_logprob: float
    """Sum of the log probabilities of its output tokens."""
    finish_reason: str | None = None
    """stop or length; None while it goes on."""
    text: str | None = None
    """Text of `tokens`, once the search is over."""


class BeamSearchOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one prompt."""

    sequences: list[BeamSearchSequence]
    """The best `beam_width`, best first."""


class BeamSearch:
    """The search from one prompt.

    Args:
        prompt: what it begins with.
        params: width, length, score.
        eos_token_ids: tokens that end a sequence.
        max_model_len: most tokens of a sequence.
    """

    def __init__(
        self, prompt: PromptContent, params: BeamSearchParams, eos_token_ids: Sequence[int], max_model_len: int
    ) -> None:
        self.beams = [BeamSearchSequence(tokens=list(prompt.token_ids), cum_logprob=0.0)]
        self._cache_salt = prompt.cache_salt
        self._completed: list[BeamSearchSequence] = []
        self._params = params
        self._eos = frozenset(eos_token_ids)
        self._most_tokens = min(len(prompt.token_ids) + params.max_tokens, max_model_len)

    def prompts(self) -> list[TokensPrompt]:
        """The beams, as the next step runs them."""
        salt: dict[str, str] = {} if self._cache_salt is None else {"cache_salt": self._cache_salt}
        return [TokensPrompt(prompt_token_ids=beam.tokens, **salt) for beam in self.beams]  # type: ignore[typeddict-item]

    def extend(self, outputs: Sequence[RequestOutput]) -> None:
        """Take one step of all beams in: per beam its request's output."""
        extensions: list[BeamSearchSequence] = []
        for beam, output in zip(self.beams, outputs, strict=True):
            (logprobs,) = output.outputs[0].logprobs or [{}]
            for token_id, entry in logprobs.items():
                extended = BeamSearchSequence(
                    tokens=[*beam.tokens, token_id], cum_logprob=beam.cum_logprob + entry.logprob
                )
                if token_id in self._eos and not self._params.ignore_eos:
                    self._complete(extended, "stop")
                else:
                    extensions.append(extended)
        self.beams = self._best(extensions)
        if self.beams and len(self.beams[0].tokens) == self._most_tokens:
            for beam in self.beams:
                self._complete(beam, "length")
            self.beams = []

    def best(self) -> list[BeamSearchSequence]:
        """The best sequences that have come to their end, best first."""
        return self._best(self._completed)

    def _complete(self, sequence: BeamSearchSequence, finish_reason: str) -> None:
        self._completed.append(msgspec.structs.replace(sequence, finish_reason=finish_reason))

    def _best(self, sequences: list[BeamSearchSequence]) -> list[BeamSearchSequence]:
        return sorted(sequences, key=self._score, reverse=True)[: self._params.beam_width]

    def _score(self, sequence: BeamSearchSequence) -> float:
        length = len(sequence.tokens) - (sequence.finish_reason == "stop")
        return float(sequence.cum_logprob / length**self._params.length_penalty)


def run_beam_searches(searches: Sequence[BeamSearch], params: BeamSearchParams, generate: Generate) -> None:
    """Run searches side by side until all of them are over."""
    step = SamplingParams(temperature=0.0, max_tokens=1, logprobs=2 * params.beam_width, detokenize=False)
    while going := [search for search in searches if search.beams]:
        outputs = iter(generate([prompt for search in going for prompt in search.prompts()], step))
        for search in going:
            search.extend([next(outputs) for _ in search.beams])
