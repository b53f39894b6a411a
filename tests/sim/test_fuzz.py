"""The fuzzer finds what is broken, says the same twice, and finds nothing in the core as it is."""

from __future__ import annotations

import pytest

from sim.fuzz import __main__ as command
from sim.fuzz.bound import Remaining, steps_to_finish
from sim.fuzz.campaign import Campaign, examine, run_campaign
from sim.fuzz.draw import draw_episode
from sim.fuzz.episode import Episode, Setting
from sim.fuzz.report import campaign_lines
from sim.fuzz.situations import MINIMUM, Situations, required
from sim.fuzz.stage import play
from tests.mutants.mutants import MUTANTS
from tests.mutants.mutation import planted
from tests.sim.mended import MENDED

NUM_STEPS = 20_000


@pytest.fixture(scope="module")
def campaign() -> Campaign:
    return run_campaign(NUM_STEPS, seed=1)


def test_the_core_breaks_nothing_and_the_dice_reach_every_situation(campaign: Campaign) -> None:
    assert campaign.failure is None
    assert campaign.missing == []
    assert campaign.num_steps >= NUM_STEPS and campaign.num_replayed > 0
    assert {name for name in MINIMUM if not campaign.situations.counts[name]} == set()


@pytest.mark.parametrize("episode", MENDED.values(), ids=MENDED)
def test_what_broke_once_holds(episode: Episode) -> None:
    assert play(episode, Situations(), record=True).violation is None


def test_the_same_seed_prints_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    printed = [(command.main(["--steps", "2000", "--seed", "3"]), capsys.readouterr().out) for _ in range(2)]
    assert printed[0] == printed[1]
    assert printed[0][1] != (command.main(["--steps", "2000", "--seed", "4"]), capsys.readouterr().out)[1]


def test_an_episode_can_be_played_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--episode", "7"]) == 0
    assert capsys.readouterr().out == "episode 7 breaks nothing\n"


def test_a_situation_that_is_never_reached_fails_the_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sim.fuzz.situations._TOO_FEW_STEPS", 0)
    monkeypatch.setitem(MINIMUM, "reset done", 1_000_000)
    assert command.main(["--steps", "500"]) == 1
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert verdict.startswith("seen too seldom:") and "reset done" in verdict


def test_requirements_grow_with_the_steps(campaign: Campaign) -> None:
    assert all(required(name, 1_000) == 0 < required(name, 1_000_000) <= required(name, 2_000_000) for name in MINIMUM)
    table = "\n".join(campaign_lines(campaign))
    assert all(name in table for name in MINIMUM)


def test_a_failure_is_shrunk_to_what_matters_and_can_be_reproduced(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "late output applied to a reused id")
    with planted(mutant):
        campaign = run_campaign(NUM_STEPS, seed=0)
        failure = campaign.failure
        assert failure is not None
        assert failure.violation.invariant in mutant.caught_by
        assert len(failure.smallest.arrivals) == 2 < len(draw_episode(failure.seed).arrivals)
        assert play(failure.smallest, Situations()).violation == failure.violation
        assert command.main(["--episode", str(failure.seed)]) == 1
    printed = capsys.readouterr().out
    assert f"again: python -m sim.fuzz --episode {failure.seed}" in printed
    assert all(repr(arrival) in printed for arrival in failure.smallest.arrivals) and "UpdateRequest" in printed
    assert examine(draw_episode(failure.seed)) is None


def test_the_bound_grows_with_what_is_left_to_do() -> None:
    one, two = Remaining(10, 5), Remaining(30, 1)
    fcfs, priority = Setting(max_num_batched_tokens=5), Setting(max_num_batched_tokens=5, policy="priority")
    assert steps_to_finish(fcfs, []) == 0
    assert steps_to_finish(fcfs, [one]) == 3 + 5 + 1
    assert steps_to_finish(fcfs, [one, two]) == 9 + 7 + 1 + 1
    assert steps_to_finish(priority, [one, two]) > steps_to_finish(fcfs, [one, two])
    assert steps_to_finish(Setting(long_prefill_token_threshold=1), [one]) == 15 + 5 + 1
