"""What every view draws is what the state says: of a tiny trace, of one with everything at once, and of a large one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.trace import events as ev
from sim.query.find import steps_where
from sim.query.predicate import Predicate
from sim.timeline import StepView, Timeline
from sim.trace_index import LARGE_TRACE_EVENTS
from tests.core.driver import record_crowd
from tests.viz.conftest import shipped
from tests.viz.drawn import Drawn
from viz.figures.parts import Selection
from viz.figures.stage import stage
from viz.views import VIEWS

_LOOKS = 6


@pytest.fixture(scope="module", params=["tiny", "crowded", "large"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    if request.param != "large":
        return shipped({"tiny": "first-token", "crowded": "crowded"}[request.param])
    path = tmp_path_factory.mktemp("large") / "crowd.jsonl.zst"
    record_crowd(path, seed=1, num_requests=900, speculative_config={"method": "eagle", "num_speculative_tokens": 2})
    timeline = Timeline.open(path)
    assert len(timeline.events) >= LARGE_TRACE_EVENTS
    assert timeline.summary().num_preemptions > 20
    assert timeline.summary().num_hit_tokens > 0
    return timeline


def looks(timeline: Timeline) -> list[StepView]:
    """Steps spread over the run, and those in which much happens."""
    spread = timeline.steps[:: -(-len(timeline.steps) // _LOOKS)]
    preempting = list(steps_where(timeline, Predicate("preempted and hit >= 0"), timeline.steps[:200]))[:2]
    return [timeline.step(number) for number in sorted({*spread, *preempting, timeline.steps[-1]})]


def of(view: StepView, kind: type[ev.Event]) -> list[ev.Event]:
    return [event for event in view.events if isinstance(event, kind)]


Check = Callable[[Timeline, StepView, Drawn], None]


def the_plan(_: Timeline, view: StepView, drawn: Drawn) -> None:
    rows = {int(row["data-row"]): int(row["data-tokens"]) for row in drawn.all(data_row=None)}
    planned = {serial: row.num_scheduled_tokens for serial, row in view.plan.rows.items()}
    assert rows.items() <= planned.items()
    assert len(rows) == min(len(planned), max(7, len(rows)))
    assert int(drawn.one(data_used=None)["data-used"]) == view.plan.num_scheduled_tokens
    assert drawn.numbers("data_seat") == view.planned.running
    assert drawn.numbers("data_preempted") == view.plan.preempted


def the_pool(_: Timeline, view: StepView, drawn: Drawn) -> None:
    counts = view.planned.pool.counts()
    legend = drawn.one(data_null=None)
    assert {kind: int(legend[f"data-{kind.replace(' ', '-')}"]) for kind in counts} == counts
    blocks = {int(each["data-block"]): each["data-state"] for each in drawn.all(data_state=None)}
    assert blocks == {block.block_id: block.kind for block in view.planned.pool.blocks()}
    assert int(drawn.one(data_length=None)["data-length"]) == view.planned.pool.num_free


def all_of_it(timeline: Timeline, view: StepView, drawn: Drawn) -> None:
    the_plan(timeline, view, drawn)
    legend = drawn.one(data_null=None)
    assert int(legend["data-in-use"]) == view.planned.pool.counts()["in use"]


def the_super_sequence(_: Timeline, view: StepView, drawn: Drawn) -> None:
    segments = {int(each["data-segment"]): int(each["data-tokens"]) for each in drawn.all(data_segment=None)}
    assert segments == {serial: row.num_scheduled_tokens for serial, row in view.plan.rows.items()}


def the_parts_that_worked(_: Timeline, view: StepView, drawn: Drawn) -> None:
    lit = {part["data-part-name"] for part in drawn.all(data_active=None)}
    assert ("Executor" in lit) == bool(view.plan.rows)
    assert ("LLMEngine.add_request" in lit) == bool(view.arrivals)


def the_automaton(_: Timeline, view: StepView, drawn: Drawn) -> None:
    for lit in drawn.all(data_lit=None):
        states = {
            request.automaton_state for request in (*view.planned.requests.values(), *view.after.requests.values())
        }
        assert int(lit["data-state"]) in states


def the_verdicts(_: Timeline, view: StepView, drawn: Drawn) -> None:
    told = {event.request: event.num_accepted for event in of(view, ev.SpecVerdict)}  # type: ignore[attr-defined]
    shown = {int(each["data-verdict"]): int(each["data-accepted"]) for each in drawn.all(data_verdict=None)}
    assert shown.items() <= told.items()
    assert bool(shown) == bool(told)


def the_prefixes(_: Timeline, view: StepView, drawn: Drawn) -> None:
    cached = view.planned.pool.cached_block_hash_to_block
    if cached:
        assert int(drawn.one(data_cached=None)["data-cached"]) == len(cached)
    for node in drawn.all(data_prefix=None):
        block_ids = cached.get(node["data-prefix"])
        if block_ids is not None:
            assert int(node["data-block"]) in block_ids


def the_events(_: Timeline, view: StepView, drawn: Drawn) -> None:
    shown = {int(each["data-event"]): each["data-type"] for each in drawn.all(data_type=None)}
    assert shown
    recorded = {event.seq: event.__struct_config__.tag for event in [*view.preceding, *view.events]}
    assert shown.items() <= recorded.items()
    assert {event.seq for event in view.events} <= {*shown} or len(shown) >= 50


def the_shares(_: Timeline, view: StepView, drawn: Drawn) -> None:
    shares = {int(e["data-share"]): int(e["data-tokens"]) for e in drawn.all(data_step_of=view.step)}
    assert shares == {serial: row.num_scheduled_tokens for serial, row in view.plan.rows.items()}


def the_latencies(timeline: Timeline, _: StepView, drawn: Drawn) -> None:
    requests = timeline.summary().metrics.requests
    (ttft,) = drawn.all(data_measure="ttft")
    assert int(ttft["data-values"]) == sum(request.ttft_ns is not None for request in requests)
    assert drawn.numbers("data_tokens_drawn") == [timeline.summary().num_output_tokens]


def the_roof(timeline: Timeline, view: StepView, drawn: Drawn) -> None:
    points = set(drawn.numbers("data_point"))
    assert points <= set(timeline.steps)
    assert points or "sizes of its model" in drawn.text or "no time to draw" in drawn.text
    if points and view.plan.rows:
        assert [int(each["data-point"]) for each in drawn.all(data_current=None)] == [view.step]


def the_numbers(timeline: Timeline, view: StepView, drawn: Drawn) -> None:
    facts = {each.step: each for each in timeline.series}
    assert float(drawn.one(data_statistic="requests running")["data-now"]) == facts[view.step].num_running
    used = drawn.one(data_statistic="KV cache in use")
    assert float(used["data-now"]) == pytest.approx(100 * facts[view.step].kv_cache_usage, rel=1e-4)


def the_lives(timeline: Timeline, view: StepView, drawn: Drawn) -> None:
    lanes = drawn.numbers("data_lane")
    assert lanes
    lives = [timeline.life_lines[serial] for serial in lanes]
    assert set(drawn.numbers("data_arrival")) <= {life.added for life in lives}
    assert set(drawn.numbers("data_first_token")) <= {life.first_token for life in lives}
    assert set(drawn.numbers("data_end")) <= {life.finished for life in lives}
    assert drawn.numbers("data_now") == [view.step]


def the_preemption(timeline: Timeline, _: StepView, drawn: Drawn) -> None:
    num_preemptions = timeline.summary().num_preemptions
    assert bool(drawn.all(data_frame=None)) == bool(num_preemptions)
    if num_preemptions:
        preempting = {facts.step for facts in timeline.series if facts.preemptions}
        assert preempting & set(drawn.numbers("data_frame_step"))


def the_rules(_: Timeline, __: StepView, drawn: Drawn) -> None:
    if not drawn.all(data_violations=None):
        assert "asked" in drawn.text or drawn.all(data_panel="invariants")
        return
    assert int(drawn.one(data_violations=None)["data-violations"]) == 0
    assert int(drawn.one(data_differs=None)["data-differs"]) == 0


CHECKS: dict[str, Check] = {
    "all": all_of_it,
    "scheduler": the_plan,
    "kv": the_pool,
    "forward": the_super_sequence,
    "engine": the_parts_that_worked,
    "guided": the_automaton,
    "speculation": the_verdicts,
    "prefix": the_prefixes,
    "events": the_events,
    "chunks": the_shares,
    "latency": the_latencies,
    "roofline": the_roof,
    "statistics": the_numbers,
    "life": the_lives,
    "preemption": the_preemption,
    "checks": the_rules,
}


def test_every_view_is_checked() -> None:
    assert set(CHECKS) == set(VIEWS)


@pytest.mark.parametrize("name", VIEWS)
def test_it_draws_what_the_state_says(run: Timeline, name: str) -> None:
    for view in looks(run):
        CHECKS[name](run, view, Drawn(stage(run, view, Selection(view=name))))
