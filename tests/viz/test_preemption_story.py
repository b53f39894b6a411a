"""The story of a preemption says what events and states say: shipped, in a crowd, with priorities, with a connector."""

from __future__ import annotations

import pytest

from engine.trace import events as ev
from engine.trace.file import Trace
from sim.preemptions import Preemption, preemption, victims
from sim.timeline import Timeline
from tests.core.driver import record_crowd
from tests.viz.conftest import shipped
from tests.viz.drawn import Drawn
from viz.figures.parts import Selection
from viz.figures.preemption_frames import MOST_REQUESTS
from viz.figures.preemption_story import MOST_NAMED, chosen, preemption_story
from viz.gallery import GALLERY, situation

NOBODY = Selection()
SHIPPED = ("preemption", "crowded")


@pytest.fixture(scope="module", params=[*SHIPPED, "crowd", "priority", "connected"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    if request.param in SHIPPED:
        return shipped(request.param)
    path = tmp_path_factory.mktemp("trace") / "run.jsonl"
    policy = "priority" if request.param == "priority" else "fcfs"
    connected = request.param == "connected"
    return Timeline(record_crowd(path, seed=3, num_requests=30, connected=connected, policy=policy))


def stories(timeline: Timeline) -> list[tuple[Preemption, Drawn]]:
    told = [preemption(timeline, *each) for each in victims(timeline)]
    assert told
    return [
        (each, Drawn(preemption_story(timeline, timeline.step(each.step), Selection(request=each.victim))))
        for each in told
    ]


def test_the_full_pool_is_that_of_the_step_before(run: Timeline) -> None:
    for told, drawn in stories(run):
        before = run.step(told.step).before
        bar = drawn.one(data_in_use=None)
        assert (int(bar["data-in-use"]), int(bar["data-free"])) == (before.pool.num_in_use, before.pool.num_free)
        assert sum(int(e["data-blocks"]) for e in drawn.all(data_part_of=None)) == before.pool.num_in_use
        holders = {int(e["data-holder"]): int(e["data-blocks"]) for e in drawn.all(data_holder=None)}
        assert {told.victim, told.event.for_request} <= set(holders)
        assert len(holders) == min(len(before.running), MOST_REQUESTS)
        for serial, blocks in holders.items():
            tables = before.requests[serial].block_ids
            assert blocks == len({block_id for table in tables for block_id in table} - {0})


def test_missing_blocks_are_those_that_were_not_free(run: Timeline) -> None:
    for told, drawn in stories(run):
        assert drawn.numbers("data_missing") == [told.event.needed - told.event.available]
        assert len(drawn.all(data_wanted=None)) == told.event.needed
        got = [e for e in drawn.all(data_wanted=None) if "got" in e.classes]
        assert len(got) == run.state_at(told.position).pool.num_free


def test_the_victim_stands_where_the_policy_looks(run: Timeline) -> None:
    policy = run.header.config.scheduler.policy
    for told, drawn in stories(run):
        running = run.state_at(told.position).running
        (victim,) = [int(e["data-seat"]) for e in drawn.all(data_seat=None) if "victim" in e.classes]
        assert victim == told.victim
        assert drawn.one(data_policy=None)["data-policy"] == policy
        if policy == "fcfs":
            assert drawn.numbers("data_seat")[-1] == victim == running[-1]
        else:
            requests = run.state_at(told.position).requests
            assert victim == max(running, key=lambda serial: (requests[serial].priority, serial))


def test_blocks_given_back_are_drawn_as_the_step_leaves_them(run: Timeline) -> None:
    taken = findable = 0
    for told, drawn in stories(run):
        settled, planned = run.state_at(told.settled), run.step(told.step).planned
        given_back = drawn.all(data_role="given back")
        assert [int(e["data-block"]) for e in given_back] == [each for each in told.freed_block_ids if each]
        for cell in given_back:
            kind = planned.pool.block(int(cell["data-block"])).kind
            assert ("used" in cell.classes) == (kind in ("in use", "shared"))
            assert ("cached" in cell.classes) == (kind == "cached")
            taken += kind == "in use"
        full = [block_id for block_id in told.freed_block_ids if settled.pool.hashes[block_id] is not None]
        assert drawn.numbers("data_findable") == [len(full)]
        assert drawn.numbers("data_shared") == [sum(settled.pool.ref_counts[block_id] > 0 for block_id in full)]
        kept = sum(planned.pool.hashes[block_id] == settled.pool.hashes[block_id] for block_id in full)
        assert drawn.numbers("data_taken") == [len(full) - kept]
        findable += len(full)
    assert min(taken, findable) > 0


def test_its_return_says_what_the_trace_says(run: Timeline) -> None:
    back = 0
    for told, drawn in stories(run):
        steps = [int(e["data-frame-step"]) for e in drawn.all(data_frame_step=None)]
        assert steps[:3] == [max(told.step - 1, 1), told.step, told.step]
        assert len(drawn.all(data_frame=None)) == 4
        if told.back is None:
            assert "before it comes back" in drawn.text or "still waits when the trace ends" in drawn.text
            assert len(steps) == 3
            continue
        back += 1
        assert steps[3] == told.back.step
        assert sum(drawn.numbers("data_found")) == told.back.num_cached_tokens + told.back.num_remote_tokens
        assert sum(drawn.numbers("data_again")) == told.num_lost_tokens
        assert drawn.numbers("data_pieces") == [len(told.pieces)]
    assert back > 0


def test_the_story_is_the_newest_that_has_begun(run: Timeline) -> None:
    everyone = victims(run)
    for step in run.steps:
        told = chosen(run, step, None)
        assert told is not None
        begun = [each for each in everyone if each[0] - 1 <= step] or everyone[:1]
        assert told.step == begun[-1][0]


def test_the_selected_victim_keeps_its_story_until_it_has_caught_up() -> None:
    timeline = shipped("preemption")
    assert victims(timeline) == [(21, 3), (35, 2), (49, 3)]
    told = preemption(timeline, 21, 3)
    assert told.caught_up == 47
    steps = {step: chosen(timeline, step, 3) for step in (20, 36, 47, 48)}
    assert [story and story.step for story in steps.values()] == [21, 21, 21, 49]
    newest = chosen(timeline, 36, 0)
    assert newest is not None
    assert (newest.step, newest.victim) == (35, 2)


def test_the_frames_of_the_step_are_marked() -> None:
    timeline = shipped("preemption")
    for step, here in ((20, [1]), (21, [2, 3]), (30, []), (47, [4])):
        drawn = Drawn(preemption_story(timeline, timeline.step(step), Selection(request=3)))
        assert [int(e["data-frame"]) for e in drawn.all(data_here=None)] == here


def test_of_many_preemptions_those_around_the_step_are_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("trace") / "run.jsonl"
    timeline = Timeline(record_crowd(path, seed=3, num_requests=120))
    everyone = victims(timeline)
    assert len(everyone) > MOST_NAMED
    for step, victim in everyone[::7]:
        drawn = Drawn(preemption_story(timeline, timeline.step(step), Selection(request=victim)))
        named = [(int(e["data-other-step"]), int(e["data-other"])) for e in drawn.all(data_other=None)]
        assert (step, victim) in named
        assert len(named) == MOST_NAMED
        assert drawn.numbers("data_hidden") == [len(everyone) - MOST_NAMED]


def test_a_run_without_one_says_so_and_where_to_look() -> None:
    timeline = shipped("first-token")
    assert not any(isinstance(event, ev.SchedulePreempted) for event in timeline.events)
    drawn = Drawn(preemption_story(timeline, timeline.step(1), NOBODY))
    shown = situation("preemption")
    assert shown in GALLERY
    assert shown is not None
    assert shown.title in drawn.text
    assert drawn.one(data_act="open:preemption")


def test_a_trace_cut_within_the_step_tells_what_it_holds() -> None:
    whole = shipped("preemption")
    position, span = preemption(whole, 21, 3).position, whole.span(21)
    for end in range(position + 1, span.end):
        timeline = Timeline(Trace(whole.header, list(whole.events[:end])))
        drawn = Drawn(preemption_story(timeline, timeline.step(21), NOBODY))
        assert "still waits when the trace ends" in drawn.text
        freed = [event for event in whole.events[position:end] if isinstance(event, ev.KVFreed)]
        assert len(drawn.all(data_role="given back")) == sum(len(event.block_ids) for event in freed)
