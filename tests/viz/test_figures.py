"""The figures say what the state says, in every step of every shipped trace."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from engine.trace import events as ev
from engine.trace.file import Trace
from sim.timeline import StepView, Timeline
from tests.core.driver import FULL, record_crowd, window_of
from tests.viz.conftest import shipped
from tests.viz.drawn import Drawn
from viz.explain import explain
from viz.figures.forward_pass import forward_pass, super_sequence
from viz.figures.html import Html, el
from viz.figures.kv_memory import kv_memory
from viz.figures.parts import Selection
from viz.figures.scheduler import requests, scheduler
from viz.figures.spine import spine
from viz.figures.stage import stage
from viz.figures.why import why
from viz.theme import REQUEST_COLOURS, contrast, request_class, request_css
from viz.views import VIEWS

ALONE = Selection(view="kv")


# --- scheduler --------------------------------------------------------------------------------------------------


def test_scheduler_draws_the_plan(views: list[StepView]) -> None:
    for view in views:
        drawn, plan = Drawn(scheduler(view, Selection(view="scheduler"))), view.plan
        rows = {int(row["data-row"]): int(row["data-tokens"]) for row in drawn.all(data_row=None)}
        assert rows == {serial: row.num_scheduled_tokens for serial, row in plan.rows.items()}
        assert drawn.numbers("data_waiting") == view.planned.waiting
        assert drawn.numbers("data_seat") == view.planned.running
        assert drawn.numbers("data_preempted") == plan.preempted
        ends = [event.request for event in view.events if isinstance(event, ev.RequestFinished)]
        assert drawn.numbers("data_finished") == ends


def test_budget_bar_adds_up(views: list[StepView]) -> None:
    for view in views:
        drawn = Drawn(scheduler(view, Selection()))
        parts = [int(part["data-tokens"]) for part in drawn.all(data_budget=None)]
        total = next(e for e in view.events if isinstance(e, ev.StepScheduled)).total_num_scheduled_tokens
        assert sum(parts) == total == int(drawn.one(data_used=None)["data-used"])
        assert drawn.one(data_total=None)["data-total"] == str(view.plan.token_budget)


def test_many_rows_are_counted_not_dropped() -> None:
    view = shipped("prefix-hit").step(10)
    row = next(iter(view.plan.rows.values()))
    view.plan.rows.update({serial: msgspec.structs.replace(row, request=serial) for serial in range(100)})
    drawn = Drawn(scheduler(view, Selection()))
    shown = len(drawn.all(data_row=None))
    assert shown < 100
    assert f"… {100 - shown} more" in drawn.text


def test_every_request_has_its_card(views: list[StepView]) -> None:
    for view in views:
        assert sorted(Drawn(requests(view, Selection())).numbers("data_card")) == sorted(view.after.requests)


# --- KV memory --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def connected(tmp_path_factory: pytest.TempPathFactory) -> list[StepView]:
    """A crowd of which half the KV comes from elsewhere."""
    path = tmp_path_factory.mktemp("trace") / "crowd.jsonl"
    timeline = Timeline(record_crowd(path, seed=4, connected=True, num_blocks=18))
    return [timeline.step(number) for number in timeline.steps]


def test_held_blocks_are_in_use_by_a_request_that_has_ended(connected: list[StepView]) -> None:
    held = 0
    for view in connected:
        html = kv_memory(view, ALONE)
        drawn, blocks = Drawn(html), view.planned.held_blocks
        assert (f"{len(blocks)} of them held" in drawn.text) == bool(blocks)
        told = [
            cell for cell in drawn.all(data_refs=None) if "it has ended, but the block is still" in cell["data-tip"]
        ]
        assert {int(cell["data-block"]) for cell in told} == blocks
        assert all(cell["data-state"] in ("in use", "shared") for cell in told)
        held += len(blocks)
    assert held


def test_who_waits_for_kv_or_a_grammar_says_so(connected: list[StepView]) -> None:
    waits = {"waiting_for_remote_kvs": "its KV is on its way", "waiting_for_grammar": "its grammar is"}
    seen = set()
    for view in connected:
        text = Drawn(scheduler(view, Selection(view="scheduler"))).text
        for skipped in view.plan.skipped:
            if skipped.reason in waits:
                assert waits[skipped.reason] in text
                seen.add(skipped.reason)
        Drawn(requests(view, Selection()))
    assert seen == set(waits)


def test_every_block_is_drawn_as_what_it_is(views: list[StepView]) -> None:
    for view in views:
        drawn, pool = Drawn(kv_memory(view, ALONE)), view.planned.pool
        cells = drawn.all(data_state=None)
        assert [int(cell["data-block"]) for cell in cells] == list(range(pool.num_blocks))
        for cell, block in zip(cells, pool.blocks(), strict=True):
            assert cell["data-state"] == block.kind
            assert cell["data-refs"] == str(block.ref_count)
            if block.owners:
                assert request_class(block.owners[0]).split()[0] in cell.classes


def test_coloured_blocks_are_the_blocks_in_use(views: list[StepView]) -> None:
    for view in views:
        drawn, pool = Drawn(kv_memory(view, ALONE)), view.planned.pool
        coloured = [cell for cell in drawn.all(data_state=None) if "used" in cell.classes]
        assert len(coloured) == pool.num_in_use
        badges = [element for element in drawn.elements if "badge" in element.classes]
        assert len(badges) == pool.counts()["shared"]


def test_queue_is_drawn_in_order(views: list[StepView]) -> None:
    for view in views:
        drawn, queue = Drawn(kv_memory(view, ALONE)), list(view.planned.pool.free_block_queue)
        nodes = {int(node["data-queue"]): int(node["data-block"]) for node in drawn.all(data_queue=None)}
        assert list(nodes) == sorted(nodes)
        assert all(queue[place] == block for place, block in nodes.items())
        if queue:
            assert nodes[0] == queue[0]
            assert nodes[len(queue) - 1] == queue[-1]
            assert drawn.one(data_length=None)["data-length"] == str(len(queue))


def test_block_table_of_the_selected_request(views: list[StepView]) -> None:
    for view in views:
        for serial, request in view.planned.requests.items():
            drawn = Drawn(kv_memory(view, Selection(view="kv", request=serial)))
            entries = [int(entry["data-block"]) for entry in drawn.all(data_of=serial)]
            assert entries == request.block_ids[0]


def test_every_kv_cache_group_has_its_block_table(tmp_path: Path) -> None:
    timeline = Timeline(
        record_crowd(tmp_path / "hybrid.jsonl", groups=(FULL, window_of(6)), num_requests=6, num_blocks=40)
    )
    passed = False
    for view in map(timeline.step, timeline.steps):
        for serial, request in view.planned.requests.items():
            drawn = Drawn(kv_memory(view, Selection(view="kv", request=serial)))
            entries = [int(entry["data-block"]) for entry in drawn.all(data_of=serial)]
            assert entries == [block_id for table in request.block_ids for block_id in table]
            passed = passed or 0 in entries
    assert passed


def test_a_long_table_begins_where_the_window_stands(tmp_path: Path) -> None:
    timeline = Timeline(record_crowd(tmp_path / "long.jsonl", num_requests=5, groups=(window_of(2),), block_size=1))
    most = max(
        (len(request.block_ids[0]), number, serial)
        for number in timeline.steps
        for serial, request in timeline.step(number).planned.requests.items()
    )
    _, number, serial = most
    view = timeline.step(number)
    drawn = Drawn(kv_memory(view, Selection(request=serial)))
    table = view.planned.requests[serial].block_ids[0]
    held = [block_id for block_id in table if block_id]
    assert [int(entry["data-block"]) for entry in drawn.all(data_of=serial)] == held
    assert f"{len(table) - len(held)} passed by the window" in drawn.text


def test_selected_block_is_explained() -> None:
    view = shipped("prefix-hit").step(10)
    shared = next(block for block in view.planned.pool.blocks() if block.kind == "shared")
    drawn = Drawn(kv_memory(view, Selection(view="kv", block=shared.block_id)))
    assert drawn.one(data_detail=shared.block_id)
    assert f"reference count {shared.ref_count}" in drawn.text
    assert shared.hash is not None
    assert shared.hash[:16] in drawn.text


def _with_blocks(timeline: Timeline, num_blocks: int) -> Timeline:
    """The same trace, as if its pool had been that large: the blocks behind the ones it used stay free."""
    kv_cache = msgspec.structs.replace(timeline.header.kv_cache, num_gpu_blocks=num_blocks)
    return Timeline(Trace(msgspec.structs.replace(timeline.header, kv_cache=kv_cache), list(timeline.events)))


def test_a_large_pool_is_an_overview_with_a_window() -> None:
    view = _with_blocks(shipped("prefix-hit"), 200_000).step(10)
    drawn = Drawn(kv_memory(view, ALONE))
    tiles = drawn.all(data_used=None)
    assert sum(int(tile["data-used"]) for tile in tiles) == view.planned.pool.num_in_use
    assert len(drawn.elements) < 1500
    far = Drawn(kv_memory(view, Selection(view="kv", block=123_456)))
    assert 123_456 in {int(cell["data-block"]) for cell in far.all(data_state=None)}


def test_beside_other_panels_a_pool_is_drawn_small_enough_for_them() -> None:
    for num_blocks, cells in ((64, 64), (300, 300), (5000, 64)):
        view = _with_blocks(shipped("prefix-hit"), num_blocks).step(10)
        drawn = Drawn(kv_memory(view, Selection()))
        assert len(drawn.all(data_state=None)) == cells
        shared = view.planned.pool.counts()["shared"]
        assert len(drawn.all(data_state="shared")) == shared > 0


# --- why --------------------------------------------------------------------------------------------------------


def test_every_decision_has_its_reason_and_its_code(views: list[StepView]) -> None:
    for view in views:
        for selection in (Selection(), Selection(view="scheduler")):
            told = [reason for reason in explain(view) if selection.view != "all" or not reason.detail]
            drawn = Drawn(why(view, selection))
            assert sum(drawn.numbers("data_decisions")) == len(told)
            sources = {template["data-source"] for template in drawn.all(data_source=None)}
            assert {button["data-code"] for button in drawn.all(data_code=None)} == sources


def test_a_free_block_is_empty_or_still_cached_and_the_queue_holds_both() -> None:
    view = next(v for v in map(shipped("eviction").step, range(1, 17)) if v.planned.pool.counts()["cached"])
    drawn, pool = Drawn(kv_memory(view, ALONE)), view.planned.pool
    counts = pool.counts()
    assert counts["cached"] and counts["free"]
    assert f"{counts['cached']} cached" in drawn.text
    assert f"{counts['free']} empty" in drawn.text
    assert int(drawn.one(data_length=None)["data-length"]) == counts["cached"] + counts["free"]
    words = {"free": "empty", "cached": "free, still cached"}
    for block in drawn.all(data_state=None):
        assert words.get(block["data-state"], "") in block["data-tip"]


# --- forward pass -----------------------------------------------------------------------------------------------


def test_forward_pass_draws_the_super_sequence(views: list[StepView]) -> None:
    for view in views:
        drawn, forward = Drawn(forward_pass(view, Selection(view="forward"))), view.forward
        if not view.plan.rows:
            continue
        assert forward is not None
        assert drawn.numbers("data_segment") == forward.requests
        assert sum(drawn.numbers("data_tokens")) == len(forward.input_ids)
        slots = [int(token["data-slot"]) for token in drawn.all(data_token=None)]
        assert slots == [forward.slot_mapping[int(token["data-token"])] for token in drawn.all(data_token=None)]


def test_slots_written_in_this_step_are_solid(views: list[StepView]) -> None:
    for view in views:
        drawn, forward = Drawn(forward_pass(view, Selection(view="forward"))), view.forward
        if not view.plan.rows:
            continue
        assert forward is not None
        solid = sorted(
            int(e["data-slot"])
            for e in drawn.elements
            if e.tag == "i" and "new" in e.classes and "data-slot" in e.attributes
        )
        assert solid == sorted(forward.slot_mapping)


def test_plan_and_block_tables_give_the_recorded_tensors(timeline: Timeline) -> None:
    """A trace of level control draws the same picture as one of level forward."""
    for number in timeline.steps:
        recorded, planned = timeline.step(number), timeline.step(number)
        if not recorded.plan.rows:
            continue
        assert recorded.forward is not None
        planned.forward = None
        assert super_sequence(planned) == super_sequence(recorded)


def test_sampled_tokens_are_shown(views: list[StepView]) -> None:
    for view in views:
        appended = [e for e in view.events if isinstance(e, ev.UpdateRequest) and e.appended]
        for selection in (Selection(), Selection(view="forward")):
            drawn = Drawn(forward_pass(view, selection))
            assert [int(e["data-sampled"]) for e in drawn.all(data_sampled=None)] == (
                [len(appended)] if appended else []
            )


# --- spine ------------------------------------------------------------------------------------------------------


def test_spine_has_a_bar_per_step(timeline: Timeline) -> None:
    drawn = Drawn(spine(timeline.series))
    assert drawn.numbers("data_step") == timeline.steps
    bars = [int(bar["data-tokens"]) for bar in drawn.all(data_step=None)]
    assert bars == [facts.tokens for facts in timeline.series]


def test_spine_marks_what_happened(timeline: Timeline) -> None:
    drawn, series = Drawn(spine(timeline.series)), timeline.series
    marks = [element.classes[0] for element in drawn.elements if element.tag == "s"][:-4]  # the last four are the key
    assert marks.count("preemption") == sum(facts.preemptions > 0 for facts in series)
    assert marks.count("hit") == sum(facts.hit_tokens > 0 for facts in series)


def test_a_long_spine_shares_bars() -> None:
    series = shipped("prefix-hit").series * 100
    drawn = Drawn(spine(series))
    per = int(drawn.one(data_per=None)["data-per"])
    assert len(drawn.all(data_step=None)) <= 240
    assert per * len(drawn.all(data_step=None)) >= len(series)


# --- all of them ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_is_well_formed_and_says_something(timeline: Timeline, views: list[StepView], name: str) -> None:
    # A view of the whole run draws the whole run, at any of its steps.
    for view in views if VIEWS[name].group == "step" else views[:: max(1, len(views) // 4)]:
        drawn = Drawn(stage(timeline, view, Selection(view=name, request=0, block=1)))
        for element, following in pairwise([*drawn.elements, drawn.elements[0]]):
            assert element.tag != "section" or following.tag == "header"
        assert drawn.text.strip()


def test_a_prompt_never_becomes_markup() -> None:
    assert el("q", "", "<script>") == "<q>&lt;script&gt;</q>"
    assert el("b", "", data_tip='">') == '<b data-tip="&quot;&gt;"></b>'
    assert el("b", "", Html("<i></i>")) == "<b><i></i></b>"


def test_requests_have_colours_that_read_and_repeat_with_a_pattern() -> None:
    css = request_css()
    for serial in range(len(REQUEST_COLOURS)):
        assert f".q{serial} " in css
    assert len({request_class(serial) for serial in range(32)}) == 32
    on = {"#0072B2": "#FFFFFF"}
    for colour in REQUEST_COLOURS[:-1]:
        assert contrast(colour, on.get(colour, "#14171C")) >= 4.5
