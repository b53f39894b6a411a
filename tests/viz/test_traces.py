"""The shipped traces hold the situations that they are shipped for."""

from __future__ import annotations

from engine.trace import events as ev
from sim.replay import replay
from tests.viz.conftest import shipped


def test_the_crowded_trace_holds_everything_at_once() -> None:
    timeline = shipped("crowded")
    events, summary = timeline.events, timeline.summary()
    kinds = {type(event) for event in events}
    rows = [event for event in events if isinstance(event, ev.ScheduleRequest)]
    assert summary.num_preemptions > 1
    assert summary.num_hit_tokens > 0
    assert summary.num_evictions > 0
    assert {ev.GrammarBitmaskFilled, ev.GrammarAdvanced, ev.SpecVerdict, ev.KVTouched, ev.ScheduleSkipped} <= kinds
    assert {event.priority for event in events if isinstance(event, ev.RequestAdded)} == {0, 1, 2, 3}
    verdicts = [event for event in events if isinstance(event, ev.SpecVerdict)]
    assert {verdict.token_kind for verdict in verdicts} == {"recovered", "bonus"}
    assert {row.truncated_by for row in rows} >= {"token_budget", "long_prefill_token_threshold"}
    assert {row.admission for row in rows} == {"running", "new", "resumed"}
    assert replay(timeline.trace).num_divergences == 0


def test_its_step_shows_most_of_it() -> None:
    view = shipped("crowded").step(10)
    kinds = {type(event) for event in view.events}
    assert {ev.SpecVerdict, ev.GrammarBitmaskFilled, ev.ScheduleSkipped} <= kinds
    assert any(isinstance(event, ev.KVAllocated) and event.evicted_block_ids for event in view.events)
    assert {row.phase for row in view.plan.rows.values()} == {"prefill", "decode"}
    assert view.planned.pool.counts()["shared"] == 3
