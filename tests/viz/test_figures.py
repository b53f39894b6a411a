"""The figures say what the state says, in every step of every shipped trace."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from engine.trace import events as ev
from sim.timeline import StepView, Timeline
from tests.viz.conftest import shipped
from tests.viz.drawn import Drawn
from viz.explain import explain
from viz.figures.forward_pass import forward_pass, super_sequence
from viz.figures.html import Html, el
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


# --- why --------------------------------------------------------------------------------------------------------


def test_every_decision_has_its_reason_and_its_code(views: list[StepView]) -> None:
    for view in views:
        for selection in (Selection(), Selection(view="scheduler")):
            drawn = Drawn(why(view, selection))
            assert sum(drawn.numbers("data_decisions")) == len(explain(view))
            sources = {template["data-source"] for template in drawn.all(data_source=None)}
            assert {button["data-code"] for button in drawn.all(data_code=None)} == sources


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


def test_a_card_has_room_for_what_was_asked_and_for_what_came_back() -> None:
    view = shipped("crowded").step(10)
    text = Drawn(requests(view, Selection(view="scheduler"))).text
    for request in view.after.requests.values():
        for tokens, most in ((request.prompt_token_ids, 20), (request.output_token_ids, 40)):
            end = "".join(map(view.after.piece_text, tokens[-most:])).replace("\n", " ⏎ ")
            assert ("…" if len(tokens) > most else "") + end in text
    assert any(len(request.prompt_token_ids) > 20 for request in view.after.requests.values())
