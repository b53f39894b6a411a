"""`Tokenizer`: text to token ids and back, read straight from `tokenizer.json`."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from engine.errors import ModelError, RequestError
from engine.frontend.spelling import spelling_of
from engine.plain_values import shown

_NAMED_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """A model's vocabulary: encodes as Hugging Face's tokenizer of the same folder does, and knows each token's bytes.

    Args:
        backend: the tokenizer, its special tokens and template of special tokens already set.
        name: what to call it.
        digest: hex digest of what it was read from.
    """

    def __init__(self, backend: tokenizers.Tokenizer, name: str, digest: str) -> None:
        self.name = name
        self.digest = digest
        self._backend = backend
        decoder = backend.decoder
        self._spelling = spelling_of(json.loads(decoder.__getstate__()) if decoder else None)
        added = backend.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.token_bytes = functools.cache(self._token_bytes)

    @classmethod
    def from_folder(cls, folder: str | Path, name: str | None = None) -> Tokenizer:
        """Load the tokenizer of a model folder; `name` defaults to the folder's.

        Raises:
            ModelError: the folder has no tokenizer, or one that cannot be read or is of an unsupported kind.
        """
        folder = Path(folder)
        file = folder / "tokenizer.json"
        if file.is_file():
            content = file.read_bytes()
            backend = _parse(file, content)
            _apply_config(backend, folder)
        else:
            backend = _convert(folder)
            content = backend.to_str().encode()
        backend.no_padding()
        backend.no_truncation()
        return cls(backend, name or folder.name, hashlib.sha256(content).hexdigest())

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, with the special tokens (such as BOS) that the model expects around it.

        Raises:
            RequestError: the text holds half of a surrogate pair.
        """
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError as error:  # the library's word for a str that UTF-8 cannot write
            raise RequestError("The text holds half of a surrogate pair, which UTF-8 cannot write.") from error
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of a whole sequence of token ids."""
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def is_special(self, token_id: int) -> bool:
        """Whether the token steers the model (BOS, end of turn, …) rather than standing for text."""
        return token_id in self._special_ids

    def first_token_bytes(self, token_id: int) -> bytes:
        """Like `token_bytes`, for a token with no text before it."""
        token = self._backend.id_to_token(token_id)
        return b"" if token is None else self._spelling.bytes_of(token, first=True)

    def _token_bytes(self, token_id: int) -> bytes:
        """Exact bytes of a token inside a text; empty for an id that the vocabulary leaves unused."""
        token = self._backend.id_to_token(token_id)
        return b"" if token is None else self._spelling.bytes_of(token)


def _parse(file: Path, content: bytes) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises nothing more precise
        raise ModelError(f"{file} is not a tokenizer: {error}.") from error


def _convert(folder: Path) -> tokenizers.Tokenizer:
    """Let transformers convert an older format (`tokenizer.model`, `vocab.json` and `merges.txt`)."""
    if not any((folder / file).is_file() for file in ("tokenizer.model", "vocab.json")):
        raise ModelError(f"{folder} holds no tokenizer: tokenizer.json, tokenizer.model or vocab.json is needed.")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder)).backend_tokenizer
    except (ValueError, OSError, ImportError, AttributeError) as error:
        raise ModelError(f"The tokenizer in {folder} cannot be converted: {error}.") from error


def _apply_config(backend: tokenizers.Tokenizer, folder: Path) -> None:
    """Give the backend the special tokens that Hugging Face keeps in files beside it.

    Whether BOS and EOS are added is the word of `tokenizer.json` alone, as it is for transformers from version 5 on.
    """
    config: dict[str, Any] = {}
    for file in (folder / "special_tokens_map.json", folder / "tokenizer_config.json"):
        if file.is_file():
            config |= _read_json_object(file)
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    special = [token for token in _special_tokens(config, folder) if token.content not in known]
    backend.add_special_tokens(special)


def _read_json_object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except ValueError as error:
        raise ModelError(f"{file} is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file} must hold a JSON object.")
    return value


def _special_tokens(config: dict[str, Any], folder: Path) -> list[AddedToken]:
    more = config.get("additional_special_tokens") or []
    if not isinstance(more, list):
        raise ModelError(f"additional_special_tokens must be a list of tokens, got {shown(more)} in {folder}.")
    named = [(name, config.get(name)) for name in _NAMED_SPECIAL_TOKENS]
    named += [("additional_special_tokens", value) for value in more]
    contents = [_content(name, value, folder) for name, value in named if value]
    return [AddedToken(content, special=True, normalized=False) for content in contents]


def _content(name: str, token: object, folder: Path) -> str:
    content = token.get("content") if isinstance(token, dict) else token
    if not isinstance(content, str):
        raise ModelError(f"{name} must be a token's text, got {shown(token)} in {folder}.")
    return content
