"""Any step of a trace is the same whether one folds to it or jumps to it, and the sums agree with the trace."""

from __future__ import annotations

import random

import msgspec
import pytest

from engine.errors import TraceError
from engine.trace import events as ev
from engine.trace.file import Trace
from sim.state import State
from sim.timeline import Timeline
from tests.core.driver import record_crowd


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return record_crowd(tmp_path_factory.mktemp("trace") / "crowd.jsonl", seed=3, num_requests=60)


def test_a_step_begins_with_its_call_and_holds_its_events(trace: Trace) -> None:
    timeline = Timeline(trace)
    assert timeline.steps == list(range(1, len(timeline.steps) + 1))
    seen: set[int] = set()
    for number in timeline.steps:
        view = timeline.step(number)
        assert isinstance(view.events[0], ev.ScheduleCalled)
        assert {event.step for event in view.events} == {number}
        assert sum(isinstance(event, ev.StepScheduled) for event in view.events) == 1
        seen |= {event.seq for event in (*view.events, *view.preceding)}
    assert seen == {event.seq for event in trace.events}


def test_jumping_to_a_step_gives_what_folding_to_it_gives(trace: Trace) -> None:
    assert len(trace.events) > 2 * 1024, "the trace must be longer than two keyframes"
    timeline = Timeline(trace)
    order = timeline.steps.copy()
    random.Random(0).shuffle(order)
    jumped = {number: timeline.step(number) for number in order}
    for view in jumped.values():
        assert view.after.seq >= view.planned.seq > view.before.seq
    state = State.initial(trace.header)
    for event in trace.events:
        if isinstance(event, ev.ScheduleCalled):
            assert repr(jumped[event.step].before) == repr(state)
        state.apply(event)
        if isinstance(event, ev.StepScheduled):
            assert repr(jumped[event.step].planned) == repr(state)
    assert repr(timeline.state_at(len(trace.events))) == repr(state)


@pytest.fixture
def in_a_large_pool(trace: Trace) -> Timeline:
    """The same trace, as if its pool had been so large that keyframes lie far apart."""
    kv_cache = msgspec.structs.replace(trace.header.kv_cache, num_gpu_blocks=20_000)
    header = msgspec.structs.replace(trace.header, kv_cache=kv_cache)
    return Timeline(Trace(header, list(trace.events)))


def test_in_a_large_pool_looking_around_gives_what_folding_gives(in_a_large_pool: Timeline) -> None:
    events, rng = in_a_large_pool.events, random.Random(1)
    position = len(events)
    for _ in range(12):
        state = State.initial(in_a_large_pool.header).fold(events[:position])
        assert repr(in_a_large_pool.state_at(position).requests) == repr(state.requests)
        assert in_a_large_pool.state_at(position).pool == state.pool
        position = max(0, min(len(events), position + rng.choice((-1500, -700, -40, 90, 900))))


def test_in_a_large_pool_the_neighbours_of_a_step_are_near(
    in_a_large_pool: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    folded = 0
    fold = State.apply

    def counted(state: State, event: ev.Event) -> None:
        nonlocal folded
        folded += 1
        fold(state, event)

    monkeypatch.setattr(State, "apply", counted)
    last = in_a_large_pool.step(in_a_large_pool.steps[-1])
    assert last.after.seq > 2 * 1024
    far, folded = folded, 0
    for number in in_a_large_pool.steps[-4:]:
        assert in_a_large_pool.step(number).planned.step == number
        assert folded <= 2 * 1024 < far
        folded = 0


def test_the_plan_is_what_step_scheduled_says(trace: Trace) -> None:
    timeline = Timeline(trace)
    preempting = 0
    for number in timeline.steps:
        view = timeline.step(number)
        scheduled = next(event for event in view.events if isinstance(event, ev.StepScheduled))
        assert list(view.plan.rows) == scheduled.requests
        assert view.plan.num_scheduled_tokens == scheduled.total_num_scheduled_tokens
        assert view.plan.budget_left == scheduled.budget_left
        preempting += bool(view.plan.preempted)
    assert preempting > 0


def test_arrivals_are_those_since_the_step_before(trace: Trace) -> None:
    timeline = Timeline(trace)
    arrived = [event.request for number in timeline.steps for event in timeline.step(number).arrivals]
    assert arrived == list(range(60))
    late = next(view for view in map(timeline.step, timeline.steps[1:]) if view.arrivals)
    assert late.arrivals[0].request in late.before.waiting


def test_sums_agree_with_the_trace(trace: Trace) -> None:
    timeline = Timeline(trace)
    summary, series, lives = timeline.summary(), timeline.series, timeline.life_lines
    end = timeline.state_at(len(trace.events))
    requests = end.requests.values()
    assert summary.num_events == len(trace.events)
    assert summary.num_requests == summary.num_finished == len(end.requests)
    assert summary.num_preemptions == sum(r.num_preemptions for r in requests) > 0
    assert summary.num_output_tokens == sum(len(r.output_token_ids) for r in requests)
    assert summary.num_prompt_tokens == sum(r.num_prompt_tokens for r in requests)
    assert summary.num_hit_tokens == sum(facts.hit_tokens for facts in series) > 0
    assert summary.num_evictions == sum(facts.evictions for facts in series) > 0
    assert summary.num_scheduled_tokens == sum(facts.tokens for facts in series)
    assert summary.num_output_tokens == sum(facts.output_tokens for facts in series)
    assert sum(facts.preemptions for facts in series) == summary.num_preemptions
    assert [facts.step for facts in series] == timeline.steps
    for serial, life in lives.items():
        told = end.requests[serial]
        assert (life.first_scheduled, life.first_token) == (told.first_scheduled_step, told.first_token_step)
        assert (life.finished, life.request.finish_reason) == (told.finish_step, told.finish_reason)
        assert len(life.preempted) == told.num_preemptions
        assert life.request.num_cached_tokens == told.num_cached_tokens
        assert set(life.preempted).isdisjoint(life.scheduled)


def test_a_life_line_says_what_each_step_was_planned_with(trace: Trace) -> None:
    timeline = Timeline(trace)
    lives = timeline.life_lines
    for view in map(timeline.step, timeline.steps):
        requests = view.planned.requests
        assert {r: lives[r].status_in(view.step) for r in lives} == {
            r: requests[r].status if r in requests else None for r in lives
        }
        rows = view.plan.rows.values()
        prefills = {row.request: row.num_scheduled_tokens for row in rows if row.phase == "prefill"}
        told = {r: tokens for r, life in lives.items() for step, tokens in life.prefills if step == view.step}
        assert told == prefills
    for serial, life in lives.items():
        assert len(life.tokens) == len(life.request.output_times_ns), serial
        assert set(life.tokens) <= set(life.scheduled)


def test_a_step_that_is_not_there_is_refused(trace: Trace) -> None:
    timeline = Timeline(trace)
    last = timeline.steps[-1]
    with pytest.raises(TraceError, match=f"no step {last + 1}: the trace holds steps 1 to {last}"):
        timeline.step(last + 1)
    with pytest.raises(TraceError, match="holds no step at all"):
        Timeline(Trace(trace.header)).step(1)


@pytest.mark.parametrize("number", [0, -3, 1])
def test_a_step_that_does_not_follow_the_one_before_is_refused(trace: Trace, number: int) -> None:
    calls = [i for i, event in enumerate(trace.events) if isinstance(event, ev.ScheduleCalled)]
    events = trace.events.copy()
    events[calls[1]] = msgspec.structs.replace(events[calls[1]], step=number)
    with pytest.raises(TraceError, match=f"schedule.called, cannot be: it begins step {number}, where one after 1"):
        Timeline(Trace(trace.header, events))


def test_a_trace_that_ends_inside_a_step_can_be_looked_at(trace: Trace) -> None:
    cut = next(i for i, event in enumerate(trace.events) if isinstance(event, ev.ScheduleRequest)) + 1
    view = Timeline(Trace(trace.header, trace.events[:cut])).step(trace.events[cut - 1].step)
    assert len(view.plan.rows) == 1
    assert not view.plan.complete
    assert view.forward is None
    called = next(i for i, event in enumerate(trace.events) if isinstance(event, ev.ScheduleCalled)) + 1
    nothing = Timeline(Trace(trace.header, trace.events[:called]))
    with pytest.raises(TraceError, match="ends before step 1 was planned"):
        _ = nothing.step(1).plan
