"""`bad_words` as token ids: each word as the tokenizer spells it at the beginning of a text, and in its middle."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import RequestError
from engine.frontend.tokenizer import Tokenizer


def bad_words_token_ids(bad_words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The token sequences that spell the words.

    A word is taken without and with a space before it. The latter counts only where it is as long as the former and
    begins with another token (as in vLLM): a longer one begins with a token that is a space and nothing else, and
    what follows that is the former.

    Raises:
        RequestError: a word is nothing to the tokenizer.
    """
    sequences: list[tuple[int, ...]] = []
    for word in bad_words:
        bare = tuple(tokenizer.encode(word.lstrip(), add_special_tokens=False))
        if not bare:
            raise RequestError(f"bad_words must hold words that have tokens, got {word!r}.")
        sequences.append(bare)
        spaced = tuple(tokenizer.encode(" " + word.lstrip(), add_special_tokens=False))
        if len(spaced) == len(bare) and spaced[0] != bare[0]:
            sequences.append(spaced)
    return tuple(dict.fromkeys(sequences))
