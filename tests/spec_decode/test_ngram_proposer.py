"""`NgramProposer` against its rule, written out word for word."""

from __future__ import annotations

import random
from typing import Literal

import numpy as np
import pytest

from engine.spec_decode.ngram_proposer import NgramProposer
from engine.speculation import NgramMatch


def by_rule(context: list[int], shortest: int, longest: int, match: Literal["first", "last"]) -> NgramMatch | None:
    """Take the last tokens, and look for them from one end; if they are nowhere, take one less."""
    for length in range(min(longest, len(context) - 1), shortest - 1, -1):
        places = [at for at in range(len(context) - length) if context[at : at + length] == context[-length:]]
        if places:
            return NgramMatch(places[0 if match == "first" else -1], length)
    return None


@pytest.mark.parametrize("match", ["first", "last"])
@pytest.mark.parametrize(("shortest", "longest"), [(1, 1), (1, 3), (2, 5), (3, 3), (5, 5)])
def test_it_finds_what_the_rule_finds(shortest: int, longest: int, match: Literal["first", "last"]) -> None:
    rng, found = random.Random(0), 0
    proposer = NgramProposer(shortest, longest, match)
    for _ in range(500):
        vocab_size = rng.choice((2, 5))
        context = [rng.randrange(vocab_size) for _ in range(rng.randrange(1, 40))]
        expected = by_rule(context, shortest, longest, match)
        assert proposer.find(np.array(context, dtype=np.int32)) == expected
        found += expected is not None
    assert 50 < found < 500


def test_first_and_last_match_differ() -> None:
    context = np.array([7, 8, 1, 7, 8, 2, 7, 8], dtype=np.int32)
    assert NgramProposer(1, 3, "first").find(context) == NgramMatch(0, 2)
    assert NgramProposer(1, 3, "last").find(context) == NgramMatch(3, 2)


@pytest.mark.parametrize("context", [[5], [5, 6], [5, 6, 7, 8]])
def test_no_match_is_no_proposal(context: list[int]) -> None:
    assert NgramProposer(1, 3).find(np.array(context, dtype=np.int32)) is None
