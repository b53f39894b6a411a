"""What a user may give as a prompt: text, token ids or embeddings."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, TypedDict

from engine.config import ModelFacts
from engine.errors import RequestError
from engine.frontend.prompt_embeds import require_embeds
from engine.frontend.tokenizer import Tokenizer
from engine.plain_values import require_spellable, require_text, shown

if TYPE_CHECKING:
    from torch import Tensor


class TextPrompt(TypedDict):
    """A prompt as text. Only prompts of the same `cache_salt` share KV blocks."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids, and perhaps the text that they were made from, which is only told again in the output.
    Only prompts of the same `cache_salt` share KV blocks."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


class EmbedsPrompt(TypedDict):
    """A prompt as what the model makes of tokens first: a float tensor [tokens, hidden_size].

    Its KV blocks are shared with no other request: there are no token ids to know them by.
    """

    prompt_embeds: Tensor


Prompt = str | TextPrompt | TokensPrompt | EmbedsPrompt


class PromptContent(NamedTuple):
    """A prompt, read."""

    text: str | None
    token_ids: tuple[int, ...]
    """Of embeddings: zeros, as many as there are."""
    embeds: Tensor | None
    cache_salt: str | None


_TEXT, _TOKENS, _TOKENS_AND_TEXT, _EMBEDS = (
    {"prompt"},
    {"prompt_token_ids"},
    {"prompt_token_ids", "prompt"},
    {"prompt_embeds"},
)


def read_prompt(prompt: object, tokenizer: Tokenizer, model: ModelFacts) -> PromptContent:
    """Take a prompt apart, and tokenise it if it is text.

    Raises:
        RequestError: it is nothing that can be a prompt.
    """
    fields: Mapping[str, Any] = {"prompt": prompt} if isinstance(prompt, str) else _fields(prompt)
    if "prompt_embeds" in fields:
        embeds = require_embeds(fields["prompt_embeds"], model.hidden_size, model.dtype)
        return PromptContent(None, (0,) * len(embeds), embeds, None)
    cache_salt = fields.get("cache_salt")
    if cache_salt is not None:
        cache_salt = require_text("cache_salt", cache_salt)
    text = fields.get("prompt")
    if "prompt" in fields and not isinstance(text, str):
        raise RequestError(f"The text of a prompt must be a string, got {type(text).__name__}.")
    if text:
        require_spellable("The text of a prompt", text)
    if "prompt_token_ids" in fields:
        return PromptContent(text, _token_ids(fields["prompt_token_ids"]), None, cache_salt)
    # Also where the tokenizer would put a BOS token before it: nobody means to send nothing.
    return PromptContent(text, tuple(tokenizer.encode(text)) if text else (), None, cache_salt)


def _fields(prompt: object) -> Mapping[str, Any]:
    given = set(prompt) if isinstance(prompt, Mapping) else set()
    if not isinstance(prompt, Mapping) or (
        given != _EMBEDS and given - {"cache_salt"} not in (_TEXT, _TOKENS, _TOKENS_AND_TEXT)
    ):
        raise RequestError(
            'A prompt must be text, {"prompt": text}, {"prompt_token_ids": [...]} or {"prompt_embeds": tensor}, got '
            + shown(prompt)
            + "."
        )
    return prompt


def _token_ids(values: object) -> tuple[int, ...]:
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise RequestError(f"prompt_token_ids must be a list of integers, got {shown(values)}.")
    try:
        # Whatever is an integer will do (NumPy's, for one); True and False only pretend to be.
        return tuple(operator.index(_no_bool(value)) for value in values)
    except TypeError as error:
        raise RequestError(f"prompt_token_ids must hold integers only, got {shown(values)}.") from error


def _no_bool(value: object) -> Any:
    return None if isinstance(value, bool) else value
