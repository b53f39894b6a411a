"""`SamplingParams`: how the tokens of one request are chosen and when it stops, with vLLM's names and rules."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from engine.errors import RequestError
from engine.guided_decoding import GrammarSpec as GrammarSpec
from engine.guided_decoding import GuidedDecodingParams
from engine.plain_values import is_int, plain_bool, plain_float, plain_int, require_json, require_text, shown

#: Temperatures up to this one are greedy: dividing logits by less would overflow float32 long before it mattered.
GREEDY_TEMPERATURE = 1e-5

#: The float32 that logits are divided by; infinity would make NaN of a hidden token.
MAX_TEMPERATURE = 1e30

#: Logits times or over a penalty within these stay far from the ends of float32.
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 1e-5, 1e5

#: A sequence's length to a power beyond it overflows before it means anything.
MAX_LENGTH_PENALTY = 10.0

#: Philox keys are 64 bits wide.
MAX_SEED = 2**64 - 1

#: Most completions of one prompt.
MAX_N = 16_384

#: A bias beyond it is cut to it.
MAX_LOGIT_BIAS = 100.0


_SWITCHES = (
    "include_stop_str_in_output",
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
)


class RequestOutputKind(enum.Enum):
    """What the outputs of a request's steps hold."""

    CUMULATIVE = 0
    """Each one everything so far."""
    DELTA = 1
    """Each one only what is new."""
    FINAL_ONLY = 2
    """There is only one, at the end."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to sample one request. Immutable; validated when it is made.

    The logits of a row go through, in this order: `allowed_token_ids`, `bad_words`, `logit_bias`, the tokens hidden by
    `min_tokens`, custom logits processors, the penalties, the mask of `guided_decoding`, `temperature`, `min_p`,
    `top_k`, `top_p`; then a token is drawn.

    Where the grammar of a guided request allows nothing more, the request ends, whatever `min_tokens` and `ignore_eos`
    say.

    Raises:
        RequestError: a value is out of its range, with the range.
    """

    n: Annotated[int, Meta(description="completions of the prompt; the i-th has the seed `seed + i`")] = 1
    presence_penalty: Annotated[
        float, Meta(description="taken off the logits of tokens that the output holds; in [-2, 2]")
    ] = 0.0
    frequency_penalty: Annotated[
        float, Meta(description="taken off the logits of tokens once for each time the output holds them; in [-2, 2]")
    ] = 0.0
    repetition_penalty: Annotated[
        float, Meta(description="logits of tokens in prompt or output: positive ones divided by it, others multiplied")
    ] = 1.0
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
    min_tokens: Annotated[
        int,
        Meta(description="output tokens before which EOS and stop tokens are hidden, and stop strings ignored"),
    ] = 0
    stop: Annotated[Sequence[str], Meta(description="strings that end the output, checked on detokenised text")] = ()
    stop_token_ids: Annotated[
        Sequence[int], Meta(description="token ids that end the output: kept in its token ids, not in its text")
    ] = ()
    include_stop_str_in_output: Annotated[bool, Meta(description="keep the stop string or token in the text")] = False
    ignore_eos: Annotated[bool, Meta(description="go on after the model's end-of-sequence token")] = False
    bad_words: Annotated[Sequence[str], Meta(description="words whose last token may not complete them")] = ()
    logit_bias: Annotated[
        Mapping[int, float] | None, Meta(description="added to the logits of token ids; cut to [-100, 100]")
    ] = None
    allowed_token_ids: Annotated[Sequence[int] | None, Meta(description="the only tokens that may be sampled")] = None
    logprobs: Annotated[
        int | None,
        Meta(
            description="most likely tokens whose log probability is told per output token, -1 for all; the sampled "
            "one is told in any case. Of the model's own distribution: log softmax of the raw logits"
        ),
    ] = None
    prompt_logprobs: Annotated[
        int | None,
        Meta(description="the same for the prompt's tokens; such a request computes all of its prompt"),
    ] = None
    detokenize: Annotated[bool, Meta(description="make text of the output")] = True
    skip_special_tokens: Annotated[bool, Meta(description="leave special tokens out of the text")] = True
    spaces_between_special_tokens: Annotated[
        bool, Meta(description="as vLLM has it; no supported tokenizer puts spaces there, so the text is the same")
    ] = True
    truncate_prompt_tokens: Annotated[
        int | None, Meta(description="keep only so many of the prompt's last tokens; -1: as many as the model can read")
    ] = None
    guided_decoding: Annotated[
        GuidedDecodingParams | None, Meta(description="what the output must look like; None: anything")
    ] = None
    output_kind: Annotated[RequestOutputKind, Meta(description="0: cumulative, 1: deltas, 2: at the end only")] = (
        RequestOutputKind.CUMULATIVE
    )
    extra_args: Annotated[
        dict[str, Any] | None, Meta(description="arguments for custom logits processors; JSON values")
    ] = None
    bad_words_token_ids: Annotated[
        tuple[tuple[int, ...], ...], Meta(description="the token sequences of bad_words; set by the frontend")
    ] = ()

    def __post_init__(self) -> None:
        self._settle_numbers()
        self._settle_counts()
        self._settle(
            stop=_as_strings("stop", self.stop),
            bad_words=_as_strings("bad_words", self.bad_words),
            stop_token_ids=_as_token_ids("stop_token_ids", self.stop_token_ids),
        )
        if self.allowed_token_ids is not None:
            self._settle(allowed_token_ids=_as_token_ids("allowed_token_ids", self.allowed_token_ids))
        if self.logit_bias is not None:
            self._settle(logit_bias=_as_biases(self.logit_bias))
        self._settle(**{name: plain_bool(name, getattr(self, name)) for name in _SWITCHES})
        self._check_agreement()

    def _settle(self, **values: Any) -> None:
        """Put in what the user's values come to."""
        for name, value in values.items():
            msgspec.structs.force_setattr(self, name, value)

    def _settle_numbers(self) -> None:
        self._settle(
            presence_penalty=plain_float("presence_penalty", self.presence_penalty, -2.0, 2.0, "in [-2, 2]"),
            frequency_penalty=plain_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0, "in [-2, 2]"),
            repetition_penalty=plain_float(
                "repetition_penalty",
                self.repetition_penalty,
                MIN_REPETITION_PENALTY,
                MAX_REPETITION_PENALTY,
                "in [1e-05, 100000]",
            ),
            temperature=plain_float("temperature", self.temperature, 0.0, MAX_TEMPERATURE, "in [0, 1e+30]"),
            top_p=plain_float("top_p", self.top_p, 0.0, 1.0, "in (0, 1]", open_left=True),
            min_p=plain_float("min_p", self.min_p, 0.0, 1.0, "in [0, 1]"),
        )

    def _settle_counts(self) -> None:
        self._settle(
            n=plain_int("n", self.n, 1, f"in [1, {MAX_N}]", MAX_N),
            top_k=plain_int("top_k", self.top_k, -1, "-1 or 0 (all tokens) or >= 1"),
            min_tokens=plain_int("min_tokens", self.min_tokens, 0, ">= 0"),
            logprobs=_as_count("logprobs", self.logprobs),
            prompt_logprobs=_as_count("prompt_logprobs", self.prompt_logprobs),
        )
        if self.seed is not None:
            self._settle(seed=plain_int("seed", self.seed, 0, "in [0, 2**64)", MAX_SEED))
        if self.max_tokens is not None:
            self._settle(max_tokens=plain_int("max_tokens", self.max_tokens, 1, ">= 1"))
            if self.min_tokens > self.max_tokens:
                raise RequestError(f"min_tokens must be <= max_tokens ({self.max_tokens}), got {self.min_tokens}.")
        if self.truncate_prompt_tokens is not None:
            kept = plain_int(
                "truncate_prompt_tokens", self.truncate_prompt_tokens, -1, "-1 (what the model can read) or >= 1"
            )
            if kept == 0:
                raise RequestError(
                    "truncate_prompt_tokens must be an integer -1 (what the model can read) or >= 1, got 0."
                )
            self._settle(truncate_prompt_tokens=kept)

    def _check_agreement(self) -> None:
        """What each field allows, but another one forbids."""
        if self.greedy and self.n > 1:
            raise RequestError(f"n must be 1 when the temperature is 0, since all would be alike, got {self.n}.")
        if self.stop and not self.detokenize:
            raise RequestError("stop must be empty when detokenize is False: stop strings are looked for in the text.")
        if not isinstance(self.output_kind, RequestOutputKind):
            raise RequestError(f"output_kind must be a RequestOutputKind, got {shown(self.output_kind)}.")
        if self.extra_args is not None:
            if not isinstance(self.extra_args, dict):
                raise RequestError(f"extra_args must be a dict, got {type(self.extra_args).__name__}.")
            require_json("extra_args", self.extra_args)
        if self.guided_decoding is not None and not isinstance(self.guided_decoding, GuidedDecodingParams):
            raise RequestError(
                f"guided_decoding must be GuidedDecodingParams, got {type(self.guided_decoding).__name__}."
            )
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError("allowed_token_ids must hold at least one token id, got none.")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, with no randomness."""
        return self.temperature <= GREEDY_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        """Whether tokens that have occurred are treated otherwise than new ones."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0

    def with_seed(self, seed: int) -> SamplingParams:
        """The same parameters under another seed."""
        return msgspec.structs.replace(self, seed=seed)


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True):
    """How `LLM.beam_search` looks for the likeliest completions.

    Raises:
        RequestError: a value is out of its range, with the range.
    """

    beam_width: int
    """Beams kept from step to step, and sequences returned."""
    max_tokens: int
    """Most output tokens of a sequence."""
    ignore_eos: bool = False
    """Take the end-of-sequence token for a token like any other."""
    length_penalty: float = 1.0
    """A sequence's score is its log probability over (its length in tokens, prompt included) to this power."""

    def __post_init__(self) -> None:
        settle = msgspec.structs.force_setattr
        settle(self, "beam_width", plain_int("beam_width", self.beam_width, 1, ">= 1"))
        settle(self, "max_tokens", plain_int("max_tokens", self.max_tokens, 1, ">= 1"))
        settle(self, "ignore_eos", plain_bool("ignore_eos", self.ignore_eos))
        most = MAX_LENGTH_PENALTY
        length_penalty = plain_float("length_penalty", self.length_penalty, -most, most, f"in [-{most:g}, {most:g}]")
        settle(self, "length_penalty", length_penalty)


def _as_strings(name: str, value: Any) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else _as_tuple(name, value, "strings")
    if not all(isinstance(text, str) and text for text in strings):
        raise RequestError(f"{name} must hold non-empty strings, got {shown(value)}.")
    return tuple(dict.fromkeys(require_text(name, text) for text in strings))


def _as_token_ids(name: str, value: Any) -> tuple[int, ...]:
    token_ids = _as_tuple(name, value, "integers >= 0")
    if not all(is_int(token_id, 0) for token_id in token_ids):
        raise RequestError(f"{name} must hold integers >= 0, got {shown(value)}.")
    return tuple(dict.fromkeys(map(int, token_ids)))


def _as_tuple(name: str, value: Any, of: str) -> tuple[Any, ...]:
    try:
        return () if value is None else tuple(value)
    except TypeError as error:
        raise RequestError(f"{name} must hold {of}, got {shown(value)}.") from error


def _as_biases(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise RequestError(f"logit_bias must map token ids to numbers, got {shown(value)}.")
    biases: dict[int, float] = {}
    for token_id, bias in value.items():
        if not is_int(token_id, 0):
            raise RequestError(f"logit_bias must map token ids >= 0 to numbers, got {shown(token_id)}: {shown(bias)}.")
        # Infinite ones are cut like any other that is too large; NaN cannot be.
        number = plain_float(f"logit_bias[{token_id}]", bias, -math.inf, math.inf, "a number", infinite=True)
        biases[int(token_id)] = min(max(number, -MAX_LOGIT_BIAS), MAX_LOGIT_BIAS)
    return biases


def _as_count(name: str, value: Any) -> int | None:
    if value is None or value is True:
        return None if value is None else 1
    return plain_int(name, value, -1, ">= 0, or -1 for the whole vocabulary")
