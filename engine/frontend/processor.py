"""`Processor`: a user's prompt becomes an `EngineCoreRequest`, or is refused in one sentence.

Everything a request could have wrong with it is found here, before the core hears of it.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple, NotRequired, TypedDict

import msgspec

from engine.config import ModelFacts
from engine.core.messages import EngineCoreRequest
from engine.errors import RequestError
from engine.frontend.tokenizer import Tokenizer
from engine.sampling_params import SamplingParams


class TextPrompt(TypedDict):
    """A prompt as text. Only prompts of the same `cache_salt` share KV blocks."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids. Only prompts of the same `cache_salt` share KV blocks."""

    prompt_token_ids: list[int]
    cache_salt: NotRequired[str]


Prompt = str | TextPrompt | TokensPrompt


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
    """

    def __init__(self, tokenizer: Tokenizer, model: ModelFacts, seed: int) -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._seed = seed

    def process(
        self, request_id: str, prompt: Prompt, sampling_params: SamplingParams, *, arrival: int, priority: int = 0
    ) -> ProcessedRequest:
        """Make a request of a prompt.

        Args:
            request_id: the client's name for it.
            prompt: text, `{"prompt": text}` or `{"prompt_token_ids": [...]}`; the latter two may have a `cache_salt`.
            sampling_params: how to choose tokens and when to stop.
            arrival: how many requests came before it in the life of the engine; decides the seed of an unseeded one.
            priority: lower is served first under the priority policy.

        Raises:
            RequestError: something about it is invalid.
        """
        if not isinstance(request_id, str) or not request_id:
            raise RequestError(f"A request id must be a non-empty string, got {request_id!r}.")
        if not isinstance(sampling_params, SamplingParams):
            raise RequestError(f"sampling_params must be SamplingParams, got {type(sampling_params).__name__}.")
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise RequestError(f"priority must be an integer, got {priority!r}.")
        text, token_ids, cache_salt = self._read(prompt)
        self._check(token_ids)
        request = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=token_ids,
            sampling_params=self._resolve(sampling_params, len(token_ids), arrival),
            eos_token_ids=self._model.eos_token_ids,
            priority=priority,
            cache_salt=cache_salt,
        )
        return ProcessedRequest(text, request)

    def _read(self, prompt: Prompt) -> tuple[str | None, tuple[int, ...], str | None]:
        """Text (if there is one), token ids and cache salt of a prompt."""
        fields: Mapping[str, Any] = {"prompt": prompt} if isinstance(prompt, str) else _prompt_fields(prompt)
        cache_salt = fields.get("cache_salt")
        if cache_salt is not None and (not isinstance(cache_salt, str) or not cache_salt):
            raise RequestError(f"cache_salt must be a non-empty string, got {cache_salt!r}.")
        if "prompt_token_ids" in fields:
            return None, _token_ids(fields["prompt_token_ids"]), cache_salt
        text = fields["prompt"]
        if not isinstance(text, str):
            raise RequestError(f"The text of a prompt must be a string, got {type(text).__name__}.")
        # Also where the tokenizer would put a BOS token before it: nobody means to send nothing.
        return text, tuple(self._tokenizer.encode(text)) if text else (), cache_salt

    def _check(self, token_ids: tuple[int, ...]) -> None:
        longest = self._model.max_model_len
        if not token_ids:
            raise RequestError("The prompt is empty: at least one token is needed.")
        if len(token_ids) >= longest:
            raise RequestError(
                f"The prompt has {len(token_ids)} tokens, but with max_model_len={longest} at most {longest - 1} "
                "leave room for output."
            )
        out_of_range = next((i for i in token_ids if not 0 <= i < self._model.vocab_size), None)
        if out_of_range is not None:
            raise RequestError(
                f"Token id {out_of_range} is out of the vocabulary: ids are 0 to {self._model.vocab_size - 1}."
            )

    def _resolve(self, sampling_params: SamplingParams, num_prompt_tokens: int, arrival: int) -> SamplingParams:
        """Settle what the user left open: the most output tokens, and the seed."""
        max_tokens, seed = sampling_params.max_tokens, sampling_params.seed
        if max_tokens is None:
            # min_tokens may ask for more than there is room for; then max_model_len ends the request, as always.
            max_tokens = max(self._model.max_model_len - num_prompt_tokens, sampling_params.min_tokens)
        if seed is None:
            seed = draw_seed(self._seed, arrival)
        return msgspec.structs.replace(sampling_params, max_tokens=max_tokens, seed=seed)


def draw_seed(engine_seed: int, arrival: int) -> int:
    """Seed of the request that came `arrival`-th: the first 8 bytes of SHA-256 over "engine seed:arrival".

    So requests differ from each other, while the same requests in the same order get the same seeds in every run.
    """
    digest = hashlib.sha256(f"{engine_seed}:{arrival}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def _prompt_fields(prompt: object) -> Mapping[str, Any]:
    given = set(prompt) if isinstance(prompt, Mapping) else set()
    if not isinstance(prompt, Mapping) or given - {"cache_salt"} not in ({"prompt"}, {"prompt_token_ids"}):
        raise RequestError(
            'A prompt must be text, {"prompt": text} or {"prompt_token_ids": [...]}, got ' + _shortened(prompt) + "."
        )
    return prompt


def _token_ids(values: object) -> tuple[int, ...]:
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise RequestError(f"prompt_token_ids must be a list of integers, got {_shortened(values)}.")
    try:
        # Whatever is an integer will do (NumPy's, for one); True and False only pretend to be.
        return tuple(operator.index(_no_bool(value)) for value in values)
    except TypeError as error:
        raise RequestError(f"prompt_token_ids must hold integers only, got {_shortened(values)}.") from error


def _no_bool(value: object) -> Any:
    return None if isinstance(value, bool) else value


def _shortened(value: object, most: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= most else text[:most] + "…"
