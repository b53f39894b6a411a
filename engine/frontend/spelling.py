"""Which bytes a token of the vocabulary stands for.

A vocabulary spells its tokens in one of two ways, and the `decoder` of its `tokenizer.json` tells which:

- *byte-level* (GPT-2): every byte has a printable stand-in, so that `Ġhi` spells the bytes of ` hi`;
- *SentencePiece-like*: a token is plain text in which `▁` spells a space, and a character that the vocabulary lacks
  is spelled byte by byte as `<0xE4>`, `<0xBD>`, … (*byte fallback*).

Bytes, not text, are the exact unit: a character may begin in one token and end in the next.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple, Protocol

from engine.errors import ModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Spelling(Protocol):
    """How one vocabulary spells bytes."""

    def bytes_of(self, token: str, *, first: bool = False) -> bytes:
        """UTF-8 bytes that a token stands for; they may be a part of a character.

        Args:
            token: the token as the vocabulary writes it.
            first: whether it begins the whole text, where a SentencePiece-like decoder drops the space of `▁`.
        """


class ByteLevelSpelling:
    """Every byte has a printable stand-in; a token that is not written in stand-ins is plain text (an added token)."""

    def bytes_of(self, token: str, *, first: bool = False) -> bytes:
        """See `Spelling.bytes_of`."""
        try:
            return bytes(_BYTE_OF_STAND_IN[char] for char in token)
        except KeyError:
            return token.encode()


class SentencePieceSpelling(NamedTuple):
    """Plain text with a mark for the space, and perhaps byte tokens."""

    space_mark: str
    byte_fallback: bool
    at_start: Literal["keep", "strip one space", "drop marks"]

    def bytes_of(self, token: str, *, first: bool = False) -> bytes:
        """See `Spelling.bytes_of`."""
        byte = _BYTE_TOKEN.fullmatch(token) if self.byte_fallback else None
        if byte:
            spelled = bytes([int(byte[1], 16)])
        elif first and self.at_start == "drop marks":
            spelled = token.replace(self.space_mark, "").encode()
        else:
            spelled = token.replace(self.space_mark, " ").encode()
        return spelled.removeprefix(b" ") if first and self.at_start == "strip one space" else spelled


def spelling_of(decoder: dict[str, Any] | None) -> Spelling:
    """The spelling that a `decoder` section of `tokenizer.json` undoes.

    Raises:
        ModelError: the decoder works by other rules.
    """
    rules = decoder["decoders"] if decoder and decoder["type"] == "Sequence" else [decoder or {"type": "none"}]
    named = {rule["type"]: rule for rule in rules}
    match list(named):
        case ["ByteLevel"]:
            return ByteLevelSpelling()
        case ["Replace", "ByteFallback", "Fuse", *strip] if _is_space_mark(named["Replace"]) and strip in (
            [],
            ["Strip"],
        ):
            if not strip:
                return SentencePieceSpelling(named["Replace"]["pattern"]["String"], True, "keep")
            if (named["Strip"]["content"], named["Strip"]["start"], named["Strip"]["stop"]) == (" ", 1, 0):
                return SentencePieceSpelling(named["Replace"]["pattern"]["String"], True, "strip one space")
        case (
            ["Metaspace"]
            | ["ByteFallback", "Metaspace"]
            | ["Metaspace", "ByteFallback"]
            | ["Metaspace", "ByteFallback", "Fuse"]
        ):
            metaspace = named["Metaspace"]
            at_start: Any = "keep" if metaspace["prepend_scheme"] == "never" else "drop marks"
            return SentencePieceSpelling(metaspace["replacement"], "ByteFallback" in named, at_start)
    raise ModelError(
        f"The tokenizer decodes by {' + '.join(named)}, which is not supported; supported are ByteLevel, Metaspace, "
        "and Replace + ByteFallback + Fuse (+ Strip) as Llama's tokenizer has them."
    )


def _is_space_mark(replace: dict[str, Any]) -> bool:
    return "String" in replace["pattern"] and replace["content"] == " "


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's stand-ins: a printable Latin-1 byte stands for itself, the others are U+0100 and on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_BYTE_OF_STAND_IN = _byte_level_alphabet()
