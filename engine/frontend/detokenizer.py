"""`Detokenizer`: the text of a request, token by token.

Token ids become bytes, bytes become characters as soon as they are complete, and nothing is ever decoded twice, so
that the cost is linear in the output::

    prompt … E4 BD │ A0 E5 │ A5 BD        token bytes (UTF-8 of 你 and 好)
                   │ 你    │ 好           what `push` returns

The pieces add up to what Hugging Face's `decode` makes of the output behind its prompt. There is one difference: in
broken UTF-8 made of byte-fallback tokens that decoder gives up every character of the run, complete ones too, where
here only the broken sequence becomes U+FFFD, as the Unicode standard recommends.
"""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterator, Sequence

from engine.frontend.tokenizer import Tokenizer

_new_decoder = codecs.getincrementaldecoder("utf-8")

#: The longest incomplete character: all but the last of four bytes.
_MAX_PENDING = 3


class Detokenizer:
    """Turns the output tokens of one request into text.

    Args:
        tokenizer: the model's tokenizer.
        prompt_token_ids: what the output follows; decides whether a leading space stays, and may end in the middle of
            a character that the output completes.
        skip_special_tokens: leave special tokens out of the text.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        prompt = self._tail_of(prompt_token_ids)
        self._at_start = prompt is None
        self._decoder = _new_decoder("replace")
        self._decoder.decode(prompt or b"")
        self._prompt_pending: bytes = self._decoder.getstate()[0]

    def push(self, token_id: int) -> str:
        """Text that became complete with the next output token; possibly empty."""
        if self._is_skipped(token_id):
            return ""
        spell = self._tokenizer.first_token_bytes if self._at_start else self._tokenizer.token_bytes
        self._at_start = False
        return self._decode(spell(token_id))

    def finish(self) -> str:
        """U+FFFD if the output ends inside a character, else nothing. The detokenizer is not used again."""
        # What the prompt alone left incomplete is not the output's text.
        return "" if self._prompt_pending else self._decoder.decode(b"", final=True)

    def _decode(self, piece: bytes) -> str:
        if piece and self._prompt_pending:
            if not _continues(self._prompt_pending, piece):
                self._decoder.reset()
            self._prompt_pending = b""
        return self._decoder.decode(piece)

    def _tail_of(self, prompt_token_ids: Sequence[int]) -> bytes | None:
        """The last bytes of the prompt's text, enough to see an incomplete character; None if it has no text."""
        pieces = list(itertools.islice(self._pieces_backwards(prompt_token_ids), _MAX_PENDING))
        return b"".join(reversed(pieces)) if pieces else None

    def _pieces_backwards(self, token_ids: Sequence[int]) -> Iterator[bytes]:
        visible = (token_id for token_id in reversed(token_ids) if not self._is_skipped(token_id))
        return filter(None, map(self._tokenizer.token_bytes, visible))

    def _is_skipped(self, token_id: int) -> bool:
        return self._skip_special_tokens and self._tokenizer.is_special(token_id)


def _continues(pending: bytes, piece: bytes) -> bool:
    """Whether the first byte of a piece goes on with the incomplete character before it."""
    try:
        _new_decoder("strict").decode(pending + piece[:1])
    except UnicodeDecodeError:
        return False
    return True
