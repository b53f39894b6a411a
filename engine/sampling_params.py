"""`SamplingParams`: how the tokens of one request are chosen and when it stops, with vLLM's names and rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.errors import RequestError

#: Temperatures below this are greedy: dividing logits by less would overflow float32 long before it mattered.
GREEDY_TEMPERATURE = 1e-5

#: Philox keys are 64 bits wide.
MAX_SEED = 2**64 - 1


class GrammarSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the output of a guided request must match."""

    kind: Annotated[
        Literal["choice", "regex", "json", "json_object", "grammar", "structural_tag"],
        Meta(description="the language it is written in"),
    ]
    text: Annotated[str, Meta(description="the pattern, schema or EBNF itself; choices and schemas as JSON")]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to sample one request. Immutable; validated when it is made.

    Raises:
        RequestError: a value is out of its range, with the range.
    """

    temperature: Annotated[float, Meta(description="softmax temperature; 0 means greedy (argmax)")] = 1.0
    top_p: Annotated[
        float, Meta(description="nucleus: keep the smallest set of tokens whose probability reaches it")
    ] = 1.0
    top_k: Annotated[int, Meta(description="keep the k most likely tokens; 0 or -1 keeps all")] = 0
    min_p: Annotated[float, Meta(description="drop tokens less likely than min_p times the most likely one")] = 0.0
    seed: Annotated[
        int | None, Meta(description="key of the request's Philox stream; drawn by the frontend when absent")
    ] = None
    max_tokens: Annotated[int | None, Meta(description="most output tokens; None: until max_model_len")] = 16
    min_tokens: Annotated[int, Meta(description="output tokens before any stop condition but length is looked at")] = 0
    stop: Annotated[Sequence[str], Meta(description="strings that end the output, checked on detokenised text")] = ()
    stop_token_ids: Annotated[Sequence[int], Meta(description="token ids that end the output (kept in it)")] = ()
    include_stop_str_in_output: Annotated[bool, Meta(description="keep the stop string in the text")] = False
    ignore_eos: Annotated[bool, Meta(description="go on after the model's end-of-sequence token")] = False
    skip_special_tokens: Annotated[bool, Meta(description="leave special tokens out of the text")] = True

    def __post_init__(self) -> None:
        _check_range("temperature", self.temperature, 0.0, math.inf, "a finite number >= 0")
        _check_range("top_p", self.top_p, 0.0, 1.0, "in (0, 1]", open_left=True)
        _check_range("min_p", self.min_p, 0.0, 1.0, "in [0, 1]")
        _check_int("top_k", self.top_k, -1, "-1 or 0 (all tokens) or >= 1")
        _check_int("min_tokens", self.min_tokens, 0, ">= 0")
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, ">= 1")
            if self.min_tokens > self.max_tokens:
                raise RequestError(f"min_tokens must be <= max_tokens ({self.max_tokens}), got {self.min_tokens}.")
        if self.seed is not None and (not _is_int(self.seed) or not 0 <= self.seed <= MAX_SEED):
            raise RequestError(f"seed must be an integer in [0, 2**64), got {self.seed!r}.")
        msgspec.structs.force_setattr(self, "stop", _as_strings(self.stop))
        msgspec.structs.force_setattr(self, "stop_token_ids", _as_token_ids(self.stop_token_ids))

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, with no randomness."""
        return self.temperature < GREEDY_TEMPERATURE

    def with_seed(self, seed: int) -> SamplingParams:
        """The same parameters under another seed."""
        return msgspec.structs.replace(self, seed=seed)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_range(name: str, value: object, low: float, high: float, allowed: str, *, open_left: bool = False) -> None:
    # Written so that NaN, for which every comparison is false, fails it.
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not low <= value <= high or value == math.inf or (open_left and value == low):  # type: ignore[operator]
        raise RequestError(f"{name} must be {allowed}, got {value!r}.")


def _check_int(name: str, value: object, low: int, allowed: str) -> None:
    if not _is_int(value) or value < low:  # type: ignore[operator]
        raise RequestError(f"{name} must be an integer {allowed}, got {value!r}.")


def _as_strings(stop: object) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())  # type: ignore[arg-type]
    if not all(isinstance(text, str) and text for text in strings):
        raise RequestError(f"stop must hold non-empty strings, got {stop!r}.")
    return strings


def _as_token_ids(ids: object) -> tuple[int, ...]:
    token_ids: tuple[int, ...] = tuple(ids or ())  # type: ignore[arg-type]
    if not all(_is_int(token_id) and token_id >= 0 for token_id in token_ids):
        raise RequestError(f"stop_token_ids must hold integers >= 0, got {ids!r}.")
    return token_ids
