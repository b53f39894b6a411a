"""Log probabilities of tokens: as the sampler sends them, and as a user gets them.

They are of the model's own distribution, log softmax of the raw logits, whatever penalties, temperature and the like
made of these before a token was drawn. So they depend on the tokens before them alone, and not on how many of them are
asked for.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class TopLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """One place in a text: the token that stands there, then the most likely tokens there, most likely first."""

    token_ids: Annotated[list[int], Meta(description="the token that stands there, then the k most likely [1 + k]")]
    logprobs: Annotated[list[float], Meta(description="natural logarithms of their probabilities [1 + k]")]
    rank: Annotated[int, Meta(description="rank of the token that stands there; 1 is the most likely")]


class Logprob(msgspec.Struct, frozen=True, kw_only=True):
    """How likely one token was at one place."""

    logprob: float
    """Natural logarithm of the probability."""
    rank: int
    """1 for the most likely token of the vocabulary."""
    decoded_token: str | None
    """The token's text; U+FFFD stands for a part of a character. None if nothing is detokenised."""


#: At one place, by token id: the token that stands there, then the most likely ones. k entries, or k + 1 where the
#: token that stands there is none of the k most likely.
TokenLogprobs = dict[int, Logprob]
