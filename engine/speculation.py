"""What a step says of its drafts beside their ids: how they were verified, and where they came from.

Plain data that worker, core and trace share.
"""

from __future__ import annotations

import struct
from typing import Annotated

import msgspec
from msgspec import Meta


class NgramMatch(msgspec.Struct, frozen=True, array_like=True):
    """Where the last tokens of a request stood before."""

    position: Annotated[int, Meta(description="of the first token of that place, in prompt and output")]
    num_tokens: Annotated[int, Meta(description="tokens that match")]


class LikelyTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The most likely tokens at the place of one draft, and the probability of each under both models."""

    token_ids: Annotated[list[int], Meta(description="token ids, most likely first")]
    target_probs: Annotated[list[float], Meta(description="probability under the model")]
    draft_probs: Annotated[list[float], Meta(description="probability under the drafter")]
    recovered_probs: Annotated[
        list[float], Meta(description="probability under max(target − draft, 0), normalised: in place of the draft")
    ]


class DraftProbs(msgspec.Struct, frozen=True, kw_only=True):
    """Why the drafts of one request were accepted or not; one entry per draft, also behind a rejection.

    All are float32 numbers, and the verdict is that of float32 arithmetic: see `num_accepted`.
    """

    target: list[float]
    draft: list[float]
    uniform: list[float]
    likely: list[LikelyTokens]
    """Empty below trace level full."""


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    """What a step tells the trace of its drafts, and of those it proposes."""

    probs: dict[int, DraftProbs]
    """By serial, of the requests that had drafts."""
    matches: dict[int, NgramMatch]
    """By serial, of those whose next drafts come from an n-gram."""


def num_accepted(target: list[float], draft: list[float], uniform: list[float]) -> int:
    """Drafts accepted from left to right: each whose uniform × draft probability is below its target probability."""
    for place, (p, q, u) in enumerate(zip(target, draft, uniform, strict=True)):
        if not _float32(u * q) < p:
            return place
    return len(target)


def _float32(value: float) -> float:
    """Rounded as the sampler does; the product of two float32 numbers is exact in a float, so it is rounded once."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded
