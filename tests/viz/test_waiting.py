"""Why a request waits in a step: the limit that the trace names, whom it stands behind, and since when."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.core.messages import RequestStatus
from engine.sampling_params import GrammarSpec
from engine.trace import events as ev
from sim.timeline import StepView, Timeline
from tests.core.driver import record_crowd, run_step
from tests.viz.conftest import shipped
from tests.viz.drawn import Drawn
from tests.viz.test_explain import Elsewhere, Run
from viz.explain import Wait, why_waits
from viz.figures.parts import Selection
from viz.figures.why import why


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def waits(view: StepView, serial: int) -> Wait:
    wait = why_waits(view, serial)
    assert wait is not None
    return wait


def test_behind_one_that_needs_more_blocks_than_are_free(path: Path) -> None:
    run = Run(path, num_blocks=17)
    run.add("a", 40)
    for name in "bcd":
        run.add(name, 30, first=60)
    run_step(run.core)
    run_step(run.core)
    needs = "needs 8 blocks, free_block_queue holds 6"
    head, last = waits(run.step(1), 1), waits(run.step(2), 3)
    assert head.sentence == f"it {needs}; it is 1st of 3 in the line"
    assert head.behind is None
    assert last.sentence.startswith("it stands behind r1, which needs 8 blocks")
    assert last.sentence.endswith("and nobody overtakes; it is 3rd of 3 in the line")
    assert (last.behind, last.since_step) == (1, 1)
    assert last.since == "from the start: its 2nd step without tokens"


def test_no_budget_and_no_seat(path: Path) -> None:
    run = Run(path, max_num_batched_tokens=12, max_num_seqs=2)
    run.add("a", 11)
    run_step(run.core)
    run.add("b", 11, first=40)
    run.add("c", 4, first=80)
    run_step(run.core)
    run_step(run.core)
    spent, seats = waits(run.step(2), 2), waits(run.step(3), 2)
    assert spent.sentence == "r1 took 11 of the 12 tokens of the budget; nobody else waits"
    assert spent.since == "since it came, after step 1: its 1st step without tokens"
    assert seats.sentence == "2 run already, and max_num_seqs is 2; nobody else waits"
    assert seats.since_step == 2
    assert why_waits(run.step(2), 1) is None, "it ran"


def test_a_running_request_for_which_nothing_is_left(path: Path) -> None:
    run = Run(path, max_num_batched_tokens=4)
    for first in (10, 30, 50):
        run.add(f"a{first}", 2, first=first)
    run_step(run.core)
    run_step(run.core)
    run.core.reconfigure(msgspec.structs.replace(run.core.scheduler.config, max_num_batched_tokens=2))
    run_step(run.core)
    wait = waits(run.step(3), 2)
    assert wait.sentence == "the budget of 2 tokens went to r0 and r1, and nothing is left for it"
    assert wait.since == "since it last ran, in step 2: its 1st step without tokens"


def test_the_victim_of_a_preemption() -> None:
    view = shipped("preemption").step(21)
    wait = waits(view, 3)
    assert wait.sentence == "it was preempted in this step: r2 needs 1 block, free_block_queue holds 0"
    assert wait.since == "since it was preempted in step 21: its 1st step without tokens"


def test_a_grammar_and_kv_from_elsewhere(path: Path) -> None:
    run = Run(path, Elsewhere(8, load_async=True))
    run.add("a", 12, grammar=GrammarSpec(kind="regex", text="[a-z]+"))
    run.add("b", 12, first=30)
    run_step(run.core)
    run.core.grammar_ready("a")
    run_step(run.core)
    assert waits(run.step(1), 0).sentence == "its grammar is not ready: it is still being compiled"
    assert waits(run.step(1), 1).sentence == "its KV is on its way: another engine has computed it"
    assert waits(run.step(2), 0).sentence == "its KV is on its way: another engine has computed it"


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_everyone_who_waits_in_a_crowd_has_an_answer(path: Path, policy: str) -> None:
    timeline = Timeline(record_crowd(path, seed=2, num_requests=40, policy=policy))
    ran: dict[int, int] = {}
    causes = set()
    for view in map(timeline.step, timeline.steps):
        plan = view.plan
        for serial, request in view.planned.requests.items():
            wait = why_waits(view, serial)
            assert (wait is None) == (serial in plan.rows or request.finished)
            if wait is None:
                continue
            causes.add(wait.rule.place.symbol.rpartition(".")[2])
            assert "does not tell" not in wait.sentence
            assert ran.get(serial, 0) < wait.since_step <= view.step
            if wait.behind is not None and serial not in plan.preempted:
                head = next(event for event in plan.skipped if event.request == wait.behind)
                assert head.reason == "no_free_blocks"
        ran |= dict.fromkeys(plan.rows, view.step)
    assert causes >= {"_schedule_waiting", "_admission_limit", "why_wait", "allocate_slots", "_choose_victim"}


def test_a_compiled_grammar_behind_the_head_of_the_line_waits_with_the_line(path: Path) -> None:
    timeline = Timeline(record_crowd(path, seed=2, num_requests=60))
    ready: set[int] = set()
    seen = 0
    for number in timeline.steps:
        view = timeline.step(number)
        ready |= {e.request for e in (*view.preceding, *view.events) if isinstance(e, ev.GrammarReady)}
        for serial in view.planned.waiting:
            if view.planned.requests[serial].status is RequestStatus.WAITING_FOR_FSM and serial in ready:
                came = [e for e in view.events if isinstance(e, ev.GrammarReady) and e.request == serial]
                if not came:
                    seen += 1
                    assert "compiled" not in waits(view, serial).sentence
    assert seen


def test_the_panel_answers_first_for_the_selected_request() -> None:
    view = shipped("head-of-line").step(4)
    drawn = Drawn(why(view, Selection(request=2)))
    answer = drawn.one(data_answer=2)
    assert answer["data-since"] == "4"
    assert drawn.text.index("Why does it wait?") < drawn.text.index("the plan")
    assert "Because r1 took 126 of the 127 tokens of the budget" in drawn.text
    other = Drawn(why(view, Selection(request=1)))
    assert not other.all(data_answer=None)
    assert other.all(data_act="request:2"), "one click away"
    assert "click it to see why" in other.text


def test_nobody_is_said_to_wait_where_nobody_does() -> None:
    drawn = Drawn(why(shipped("first-token").step(1), Selection(request=0)))
    assert not drawn.all(data_answer=None)
    assert "to see why" not in drawn.text
