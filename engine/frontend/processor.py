"""`Processor`: a user's prompt becomes an `EngineCoreRequest`, or is refused in one sentence.

Everything a request could have wrong with it is found here, before the core hears of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from engine.config import ModelFacts
from engine.core.messages import EngineCoreRequest
from engine.errors import RequestError
from engine.frontend.bad_words import bad_words_token_ids
from engine.frontend.prompts import Prompt, PromptContent, read_prompt
from engine.frontend.tokenizer import Tokenizer
from engine.plain_values import MAX_INT, plain_int, require_text
from engine.sampling_params import GrammarSpec, SamplingParams

if TYPE_CHECKING:
    from engine.sample.logits_processors import LogitsProcessor


class ProcessedRequest(NamedTuple):
    """What the core is asked to run, and the text it was made from, if it was text."""

    prompt: str | None
    request: EngineCoreRequest


class Processor:
    """Validates and tokenises prompts.

    Args:
        tokenizer: the model's tokenizer.
        model: what the model is: its vocabulary, its end-of-sequence tokens, the longest it can read.
        seed: the engine's seed, from which the seeds of requests without one are drawn.
        max_logprobs: most likely tokens that a request may ask to be told of; -1: the whole vocabulary.
        logits_processors: custom ones, which may refuse parameters.
        disable_any_whitespace: let all guided JSON be written in one line.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        model: ModelFacts,
        seed: int,
        max_logprobs: int = 20,
        logits_processors: Sequence[LogitsProcessor] = (),
        *,
        disable_any_whitespace: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._seed = seed
        self._max_logprobs = max_logprobs
        self._logits_processors = logits_processors
        self._disable_any_whitespace = disable_any_whitespace

    def process(
        self, request_id: str, prompt: Prompt, sampling_params: SamplingParams, *, arrival: int, priority: int = 0
    ) -> ProcessedRequest:
        """Make a request of a prompt.

        Args:
            request_id: the client's name for it.
            prompt: text, `{"prompt": text}`, `{"prompt_token_ids": [...]}` or `{"prompt_embeds": tensor}`; text and
                token ids may have a `cache_salt`.
            sampling_params: how to choose tokens and when to stop.
            arrival: how many prompts came before it in the life of the engine; decides the seed of an unseeded one.
            priority: lower is served first under the priority policy.

        Raises:
            RequestError: something about it is invalid.
        """
        request_id = require_text("A request id", request_id)
        if not isinstance(sampling_params, SamplingParams):
            raise RequestError(f"sampling_params must be SamplingParams, got {type(sampling_params).__name__}.")
        priority = plain_int("priority", priority, -MAX_INT, "of 64 bits")
        content = self.read_prompt(prompt, sampling_params.truncate_prompt_tokens)
        self._check_params(sampling_params)
        if content.embeds is not None and sampling_params.prompt_logprobs is not None:
            raise RequestError("prompt_logprobs must be None for a prompt of embeddings: it has no tokens.")
        resolved = self._resolve(sampling_params, len(content.token_ids), arrival)
        _require_a_token(resolved)
        request = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=content.token_ids,
            sampling_params=resolved,
            eos_token_ids=self._model.eos_token_ids,
            priority=priority,
            cache_salt=content.cache_salt,
            grammar=self._grammar(sampling_params),
            prompt_embeds=content.embeds,
        )
        return ProcessedRequest(content.text, request)

    def read_prompt(self, prompt: Prompt, truncate_prompt_tokens: int | None = None) -> PromptContent:
        """Tokenise a prompt; of a longer one only the last tokens are kept, if it is to be truncated.

        Raises:
            RequestError: it is no prompt, or has no token, too many, or one that the model does not know.
        """
        content = read_prompt(prompt, self._tokenizer, self._model)
        if truncate_prompt_tokens is not None:
            content = self._truncate(content, truncate_prompt_tokens)
        self._check_prompt(content.token_ids)
        return content

    def _truncate(self, content: PromptContent, num_tokens: int) -> PromptContent:
        longest = self._model.max_model_len - 1
        if num_tokens > longest:
            raise RequestError(
                f"truncate_prompt_tokens must be <= {longest}, the longest prompt that leaves room for output, "
                f"got {num_tokens}."
            )
        kept = slice(-(longest if num_tokens == -1 else num_tokens), None)
        embeds = None if content.embeds is None else content.embeds[kept]
        return content._replace(token_ids=content.token_ids[kept], embeds=embeds)

    def _check_prompt(self, token_ids: tuple[int, ...]) -> None:
        longest = self._model.max_model_len
        if not token_ids:
            raise RequestError("The prompt is empty: at least one token is needed.")
        if len(token_ids) >= longest:
            raise RequestError(
                f"The prompt has {len(token_ids)} tokens, but with max_model_len={longest} at most {longest - 1} "
                "leave room for output."
            )
        self._require_in_vocabulary("Token id", token_ids)

    def _check_params(self, params: SamplingParams) -> None:
        """What only the model, or a custom logits processor, makes wrong."""
        self._require_in_vocabulary("stop_token_ids: token id", params.stop_token_ids)
        self._require_in_vocabulary("logit_bias: token id", params.logit_bias or ())
        self._require_in_vocabulary("allowed_token_ids: token id", params.allowed_token_ids or ())
        most = self._model.vocab_size if self._max_logprobs == -1 else self._max_logprobs
        for name, asked in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
            if asked is not None and (self._model.vocab_size if asked == -1 else asked) > most:
                raise RequestError(f"{name} must be <= max_logprobs, which is {most} in this engine, got {asked}.")
        ends = {*self._model.eos_token_ids, *params.stop_token_ids}
        if params.min_tokens and params.allowed_token_ids and ends.issuperset(params.allowed_token_ids):
            raise RequestError("allowed_token_ids must hold more than tokens that end the output, or min_tokens be 0.")
        for processor in self._logits_processors:
            processor.validate_params(params)

    def _require_in_vocabulary(self, what: str, token_ids: Iterable[int]) -> None:
        out_of_range = next((i for i in token_ids if not 0 <= i < self._model.vocab_size), None)
        if out_of_range is not None:
            raise RequestError(
                f"{what} {out_of_range} is out of the vocabulary: ids are 0 to {self._model.vocab_size - 1}."
            )

    def _resolve(self, sampling_params: SamplingParams, num_prompt_tokens: int, arrival: int) -> SamplingParams:
        """Settle what the user left open: the most output tokens, the seed, how bad words are spelled."""
        max_tokens, seed = sampling_params.max_tokens, sampling_params.seed
        if max_tokens is None:
            # min_tokens may ask for more than there is room for; then max_model_len ends the request, as always.
            max_tokens = max(self._model.max_model_len - num_prompt_tokens, sampling_params.min_tokens)
        if seed is None:
            seed = draw_seed(self._seed, arrival)
        return msgspec.structs.replace(
            sampling_params,
            max_tokens=max_tokens,
            seed=seed,
            bad_words_token_ids=bad_words_token_ids(sampling_params.bad_words, self._tokenizer),
            guided_decoding=None,  # it goes on as the request's grammar
        )

    def _grammar(self, params: SamplingParams) -> GrammarSpec | None:
        """What the output must match; None if anything."""
        if params.guided_decoding is None:
            return None
        if not self._model.eos_token_ids:
            raise RequestError("guided_decoding needs a model with an end-of-sequence token, which ends its output.")
        spec = params.guided_decoding.spec()
        if self._disable_any_whitespace and spec.kind in ("json", "json_object"):
            spec = msgspec.structs.replace(spec, any_whitespace=False, whitespace_pattern=None)
        return spec


def _require_a_token(params: SamplingParams) -> None:
    """See that something may be sampled: bad words of one token are hidden at every step."""
    hidden = {word[0] for word in params.bad_words_token_ids if len(word) == 1}
    if params.allowed_token_ids is not None and hidden.issuperset(params.allowed_token_ids):
        raise RequestError("allowed_token_ids must hold a token that bad_words does not hide, got none.")


def draw_seed(engine_seed: int, arrival: int) -> int:
    """Seed of the prompt that came `arrival`-th: the first 8 bytes of SHA-256 over "engine seed:arrival".

    So requests differ from each other, while the same requests in the same order get the same seeds in every run.
    """
    digest = hashlib.sha256(f"{engine_seed}:{arrival}".encode()).digest()
    return int.from_bytes(digest[:8], "little")
