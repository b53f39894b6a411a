"""Every planted error is caught, and by what is meant to catch it; the code as it is passes the same checks."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from sim.fuzz.draw import draw_episode
from sim.fuzz.situations import Situations
from sim.fuzz.stage import play
from sim.invariants import INVARIANTS
from tests.conformance import test_vllm_block_hashes as block_hashes
from tests.core import test_in_flight as in_flight
from tests.mutants.mutants import MUTANTS
from tests.mutants.mutation import Edit, Mutant, planted
from tests.sim.mended import MENDED

#: Every mutant is met within so many steps.
NUM_STEPS = 24_000


def fuzz() -> str | None:
    """What the fuzzer finds broken."""
    rng, steps = Random(0), 0
    while steps < NUM_STEPS:
        outcome = play(draw_episode(rng.getrandbits(32)), Situations())
        steps += outcome.num_steps
        if outcome.violation is not None:
            return outcome.violation.invariant
    return None


def hash_like_vllm() -> None:
    for none_hash, case in block_hashes.CASES:
        block_hashes.test_a_request_is_hashed_like_vllms(none_hash, case)


def play_what_broke_once() -> None:
    for episode in MENDED.values():
        assert play(episode, Situations()).violation is None


#: What raises an AssertionError when something is broken that no episode of the fuzzer is sure to show.
CHECKS: dict[str, Callable[[], None]] = {
    "block hashes equal vLLM's": hash_like_vllm,
    "episodes that broke once": play_what_broke_once,
    "nothing is planned behind the last token": in_flight.test_nothing_is_planned_behind_the_last_token,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_planted_error_is_caught(mutant: Mutant) -> None:
    check = CHECKS.get(mutant.caught_by[0])
    with planted(mutant):
        if check is None:
            assert fuzz() in mutant.caught_by
        else:
            with pytest.raises(AssertionError):
                check()


def test_the_code_as_it_is_passes() -> None:
    assert fuzz() is None
    for check in CHECKS.values():
        check()


def test_a_mutant_that_changes_nothing_is_refused() -> None:
    with (
        pytest.raises(AssertionError, match="has no 'no such code'"),
        planted(Mutant("nothing", (Edit(play, "no such code", ""),), ("nobody",))),
    ):
        pass


def test_mutants_name_what_catches_them() -> None:
    known = {*CHECKS, "client: what the model says", "no crash", *(invariant.name for invariant in INVARIANTS)}
    assert {name for mutant in MUTANTS for name in mutant.caught_by} <= known
