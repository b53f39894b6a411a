"""Preemptions are told as the states have them."""

from __future__ import annotations

import pytest

from engine.errors import TraceError
from engine.trace import events as ev
from sim.preemptions import Preemption, preemption, victims
from sim.timeline import Timeline
from tests.core.driver import record_crowd


@pytest.fixture(scope="module")
def timeline(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    return Timeline(record_crowd(tmp_path_factory.mktemp("trace") / "crowd.jsonl", seed=3, num_requests=60))


@pytest.fixture(scope="module")
def told(timeline: Timeline) -> list[Preemption]:
    return [preemption(timeline, *each) for each in victims(timeline)]


def test_every_preemption_of_the_run_is_told(timeline: Timeline, told: list[Preemption]) -> None:
    events = [event for event in timeline.events if isinstance(event, ev.SchedulePreempted)]
    assert sorted(each.event.seq for each in told) == [event.seq for event in events]
    assert len(events) == timeline.summary().num_preemptions > 0
    assert any(each.victim == each.event.for_request for each in told)


def test_blocks_are_missing_before_it_and_given_back_behind_it(timeline: Timeline, told: list[Preemption]) -> None:
    for each in told:
        before, behind = timeline.state_at(each.position), timeline.state_at(each.settled)
        assert before.pool.num_free == each.event.available < each.event.needed
        assert each.num_missing > 0
        assert each.victim in before.running
        assert each.victim not in behind.running
        assert each.freed_block_ids == before.requests[each.victim].block_ids[0][::-1]
        assert not behind.requests[each.victim].holds_blocks


def test_it_comes_back_to_compute_what_was_lost(timeline: Timeline, told: list[Preemption]) -> None:
    again = twice = found = 0
    for each in told:
        if each.back is None:
            continue
        assert each.back.step > each.step
        assert each.back.admission == "resumed"
        num_computed = timeline.state_at(each.position).requests[each.victim].num_computed_tokens
        assert each.num_lost_tokens == max(0, num_computed - each.num_found_tokens)
        found += each.num_found_tokens
        if each.caught_up is None:
            twice += 1
            continue
        # What was lost, and the token that it had been about to compute.
        assert sum(each.pieces) >= each.num_lost_tokens
        last = timeline.step(each.caught_up)
        assert any(e.request == each.victim and e.appended for e in last.events if isinstance(e, ev.UpdateRequest))
        again += 1
    assert min(again, twice, found) > 0


def test_one_that_did_not_happen_is_refused(timeline: Timeline) -> None:
    step, victim = victims(timeline)[0]
    with pytest.raises(TraceError, match=f"r{victim} was not preempted in step {step - 1}"):
        preemption(timeline, step - 1, victim)
    with pytest.raises(TraceError, match=f"r12345 was not preempted in step {step}"):
        preemption(timeline, step, 12345)
