"""Where two runs part, and how two moments differ."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.cli import main
from engine.trace import events as ev
from engine.trace.file import Trace, read_trace, write_trace
from sim.diff import diff_runs, diff_states, steps_that_differ
from sim.field_differences import FieldDifference
from sim.fork import Change, fork_trace
from sim.timeline import Timeline
from tests.core.driver import record_crowd
from viz.open_trace import SHIPPED

PREEMPTION = SHIPPED / "preemption.jsonl"


@pytest.fixture(scope="module")
def recorded() -> Trace:
    return read_trace(PREEMPTION)


@pytest.fixture(scope="module")
def forked(recorded: Trace) -> Trace:
    return fork_trace(recorded, Change(step=10, knobs={"max_num_seqs": 2}))


def test_a_run_and_itself(recorded: Trace) -> None:
    result = diff_runs(Timeline(recorded), Timeline(recorded))
    assert result.is_same
    assert not any(result)


def test_times_are_no_difference(recorded: Trace) -> None:
    later = Trace(recorded.header, [msgspec.structs.replace(event, ts=event.ts + 7) for event in recorded.events])
    assert diff_runs(Timeline(recorded), Timeline(later)).is_same


def test_a_fork_parts_from_its_recording_where_its_limit_is_met(recorded: Trace, forked: Trace) -> None:
    result = diff_runs(Timeline(recorded), Timeline(forked))
    assert result.input is not None
    assert isinstance(result.input.second, ev.ConfigChanged)
    decision = result.decision
    assert decision is not None
    assert decision.step >= 10
    assert isinstance(decision.second, ev.ScheduleSkipped)
    assert decision.second.reason == "max_num_seqs"
    assert decision.num_equal == sum(
        1
        for event in recorded.events
        if event.kind is ev.EventClass.DECISION
        and not isinstance(event, ev.StepStarted)
        and event.seq < (decision.first.seq if decision.first else 0)
    )
    (r3,) = result.requests
    assert r3.serial == 3
    assert FieldDifference("preemptions", 2, 1) in r3.fields
    assert not result.only_first
    assert not result.only_second
    assert not result.config, "the limit was changed on the way, the headers are the same"


def test_settings_and_pools_that_differ_are_named(recorded: Trace) -> None:
    other = fork_trace(recorded, Change(step=1, knobs={"num_gpu_blocks": 30, "max_num_seqs": 3}))
    fields = {each.field: each.second for each in diff_runs(Timeline(recorded), Timeline(other)).config}
    assert fields == {"kv_cache.num_gpu_blocks": 30, "scheduler.max_num_seqs": 3}


def test_one_field_of_one_decision(recorded: Trace) -> None:
    place = next(i for i, event in enumerate(recorded.events) if isinstance(event, ev.ScheduleRequest))
    wrong = list(recorded.events)
    wrong[place] = msgspec.structs.replace(wrong[place], num_scheduled_tokens=1)
    result = diff_runs(Timeline(recorded), Timeline(Trace(recorded.header, wrong)))
    assert result.input is None
    assert result.decision is not None
    assert [each.field for each in result.decision.fields] == ["num_scheduled_tokens"]
    assert result.decision.why == "num_scheduled_tokens of schedule.request"


def test_free_blocks_and_budget_are_circumstances(recorded: Trace) -> None:
    roomy = fork_trace(recorded, Change(step=1, knobs={"num_gpu_blocks": 40}))
    result = diff_runs(Timeline(recorded), Timeline(roomy))
    assert result.decision is not None
    assert result.decision.step > 1, "until blocks were short, more of them made no difference"
    wider = fork_trace(recorded, Change(step=1, knobs={"max_num_batched_tokens": 640}))
    assert diff_runs(Timeline(recorded), Timeline(wider)).is_same


def test_a_run_that_goes_on(recorded: Trace) -> None:
    last = Timeline(recorded).span(30)
    short = Trace(recorded.header, list(recorded.events[: last.end]))
    result = diff_runs(Timeline(short), Timeline(recorded))
    assert result.decision is not None
    assert result.decision.first is None
    assert result.decision.why == "only the second run goes on"


def test_requests_of_one_run_only(tmp_path: Path) -> None:
    few, many = (record_crowd(tmp_path / f"{n}.jsonl", num_requests=n) for n in (5, 8))
    result = diff_runs(Timeline(few), Timeline(many))
    assert result.only_second == ["r5", "r6", "r7"]
    assert diff_runs(Timeline(many), Timeline(few)).only_first == ["r5", "r6", "r7"]


def test_two_steps_of_a_run(recorded: Trace) -> None:
    timeline = Timeline(recorded)
    before, after = timeline.step(20).planned, timeline.step(21).planned
    result = diff_states(before, after)
    assert not result.is_same
    victims = [changed.name for changed in result.requests if FieldDifference("preemptions", 0, 1) in changed.fields]
    assert victims == [f"r{serial}" for serial in timeline.step(21).plan.preempted]
    lost = {
        changed.name
        for changed in result.blocks
        if any(field.field == "held by" and not field.second for field in changed.fields)
    }
    freed = {
        f"block {block_id}"
        for event in timeline.step(21).events
        if isinstance(event, ev.KVFreed)
        for block_id in event.block_ids
        if not after.pool.owners[block_id]
    }
    assert lost == freed
    assert diff_states(before, timeline.step(20).planned).is_same


def test_the_command(tmp_path: Path, forked: Trace, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fork.jsonl"
    write_trace(path, forked.header, forked.events)
    assert main(["diff", str(PREEMPTION), str(PREEMPTION)]) == 0
    assert "The same inputs, and the same decisions." in capsys.readouterr().out
    assert main(["diff", str(PREEMPTION), str(path)]) == 1
    said = capsys.readouterr().out
    for words in (
        "The first decision that differs, in step 22",
        "schedule.skipped",
        "Requests that fared otherwise: 1",
    ):
        assert words in said
    assert main(["diff", str(PREEMPTION), "--steps", "20", "21"]) == 0
    assert "Blocks that differ" in capsys.readouterr().out
    assert main(["diff", str(PREEMPTION), str(path), "--step", "9"]) == 0
    assert "Nothing differs." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "A trace is compared with another one"),
        ([str(PREEMPTION), "--step", "1", "--steps", "1", "2"], "Name one step with --step, or two with --steps."),
        ([str(PREEMPTION), "--steps", "1", "99"], "There is no step 99"),
    ],
)
def test_what_cannot_be_compared(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(PREEMPTION), *arguments]) != 0
    assert sentence in capsys.readouterr().err


def test_steps_differ_from_where_the_runs_part(recorded: Trace) -> None:
    roomy = Timeline(fork_trace(recorded, Change(step=1, knobs={"num_gpu_blocks": 40})))
    differing = steps_that_differ(Timeline(recorded), roomy)
    assert differing[0] == 21
    assert differing[-1] == max(Timeline(recorded).steps[-1], roomy.steps[-1])
    assert steps_that_differ(roomy, roomy) == []
