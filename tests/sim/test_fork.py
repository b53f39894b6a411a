"""Forks: with nothing changed they are the recording, and with something changed they are runs like any other."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.cli import main
from engine.core.messages import ModelRunnerOutput
from engine.errors import ConfigError, TraceError
from engine.trace import events as ev
from engine.trace.file import AnyTrace, Trace, read_trace
from sim.diff import diff_runs
from sim.fork import Change, fork_trace
from sim.fork.change import KNOBS
from sim.fuzz.draw import draw_episode
from sim.fuzz.situations import Situations
from sim.fuzz.stage import play
from sim.invariants import check_trace
from sim.replay import replay
from sim.timeline import Timeline
from tests.core.driver import EOS, answer, core_of, header, record_crowd, request
from viz.open_trace import SHIPPED, shipped_names

SPECULATIVE = {"speculative_config": {"method": "eagle", "num_speculative_tokens": 3}}


def decisions(trace: AnyTrace) -> list[ev.Event]:
    """What was decided, without numbers and times."""
    return [
        msgspec.structs.replace(event, seq=0, ts=0) for event in trace.events if event.kind is ev.EventClass.DECISION
    ]


def steps(trace: AnyTrace) -> list[int]:
    return [event.step for event in trace.events if isinstance(event, ev.ScheduleCalled)]


def of(trace: AnyTrace, kind: type[Any]) -> list[Any]:
    return [event for event in trace.events if isinstance(event, kind)]


class _Lines:
    """An `EventSink` that keeps copies."""

    def __init__(self) -> None:
        self.step = 0
        self.events: list[ev.Event] = []

    def emit(self, event: ev.Event) -> None:
        event.seq, event.step = len(self.events) + 1, self.step
        self.events.append(copy.deepcopy(event))


def require_sound(trace: Trace) -> None:
    """It replays, and breaks no invariant."""
    report = replay(trace)
    assert report.num_divergences == 0, report.divergence
    assert not check_trace(trace)


@pytest.fixture(scope="module", params=[{}, {"policy": "priority", **SPECULATIVE}], ids=["plain", "drafts"])
def crowd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Preemptions, failures, aborts, grammars, resets."""
    return record_crowd(tmp_path_factory.mktemp("crowd") / "run.jsonl", seed=5, **request.param)


@pytest.mark.parametrize("name", shipped_names())
def test_with_nothing_changed_nothing_is_new(name: str) -> None:
    trace = read_trace(SHIPPED / f"{name}.jsonl")
    all_steps = steps(trace)
    for step in (all_steps[0], all_steps[len(all_steps) // 2], all_steps[-1]):
        forked = fork_trace(trace, Change(step=step))
        assert decisions(forked) == decisions(trace)
        require_sound(forked)


def test_what_befell_the_run_befalls_it_again_in_the_same_steps(tmp_path: Path) -> None:
    befell: set[type[ev.Event]] = set()
    in_flight = in_vain = 0
    for seed in range(3, 9):
        trace = record_crowd(tmp_path / f"{seed}.jsonl", seed)
        befell |= trace.types
        last: ev.Event | None = None
        for event in trace.events:
            if event.kind is ev.EventClass.INPUT:
                in_flight += isinstance(event, ev.RequestAborted) and isinstance(last, ev.ScheduleCalled)
                last = event
        in_vain += sum(not event.requests for event in of(trace, ev.StepScheduled))
        for step in (steps(trace)[0], steps(trace)[len(steps(trace)) // 2]):
            assert decisions(fork_trace(trace, Change(step=step))) == decisions(trace)
    assert befell >= {ev.ExecutorFailed, ev.GrammarFailed, ev.CacheResetAsked, ev.ConfigChanged}
    assert in_flight and in_vain


def test_a_step_that_only_preempts_is_followed_by_one_that_goes_on() -> None:
    trace = play(draw_episode(314), Situations(), record=True).trace
    assert trace is not None
    in_vain = {event.step for event in of(trace, ev.StepScheduled) if not event.requests}
    assert in_vain & {event.step for event in of(trace, ev.SchedulePreempted)}
    assert decisions(fork_trace(trace, Change(step=1))) == decisions(trace)


def test_limits_that_changed_change_again_but_for_those_that_the_fork_turns(crowd: Trace) -> None:
    (narrowed,) = of(crowd, ev.ConfigChanged)
    forked = fork_trace(crowd, Change(step=1, knobs={"max_num_seqs": 5, "policy": "fcfs"}))
    require_sound(forked)
    (again,) = of(forked, ev.ConfigChanged)
    assert again.scheduler == msgspec.structs.replace(narrowed.scheduler, max_num_seqs=5, policy="fcfs")
    first = crowd.events[0]
    early = [msgspec.structs.replace(narrowed, seq=first.seq, ts=first.ts, step=0)]
    early += [msgspec.structs.replace(event, seq=event.seq + 1) for event in crowd.events if event is not narrowed]
    require_sound(fork_trace(Trace(crowd.header, early), Change(step=1, knobs={"policy": "priority"})))


def test_a_failure_ends_whoever_runs_then(tmp_path: Path) -> None:
    crowds = (record_crowd(tmp_path / f"{seed}.jsonl", seed) for seed in range(3, 9))
    trace = next(trace for trace in crowds if ev.ExecutorFailed in trace.types)
    failures = of(trace, ev.ExecutorFailed)
    forked = fork_trace(trace, Change(step=1, knobs={"max_num_seqs": 1}))
    require_sound(forked)
    assert len(of(forked, ev.ExecutorFailed)) == len(failures)


def test_where_no_token_could_be_sampled_none_can_be_now() -> None:
    lines = _Lines()
    core = core_of(header(), lines)
    for name in ("q0", "q1"):
        core.add(request(name, [5, 6, 7], max_tokens=6))
    for number in range(4):
        plan = core.schedule()
        output = answer(core, plan, [9] * len(plan.rows))
        if number == 2:
            output = msgspec.structs.replace(
                output, sampled_token_ids=[[], *output.sampled_token_ids[1:]], errors={0: "every token is masked"}
            )
        core.update(plan.step, output)
    trace = Trace(header(), lines.events)
    assert decisions(fork_trace(trace, Change(step=1)))[: len(decisions(trace))] == decisions(trace)
    forked = fork_trace(trace, Change(step=1, knobs={"max_num_seqs": 1}))
    require_sound(forked)
    assert {e.request: e.finish_reason for e in of(forked, ev.RequestFinished)} == {0: "error", 1: "length"}
    assert said_by(forked)[0] == [9, 9]


def test_drafts_are_right_behind_a_stop_too() -> None:
    lines = _Lines()
    head = header(speculative_config=SPECULATIVE["speculative_config"])
    core = core_of(head, lines)
    core.add(request("q0", [5, 6, 7], max_tokens=20))
    for sampled, drafts in (([9], [EOS, 8, 8]), ([EOS, 8, 7], [])):
        plan = core.schedule()
        core.update(
            plan.step,
            ModelRunnerOutput(step=plan.step, serials=[0], sampled_token_ids=[sampled], draft_token_ids=[drafts]),
        )
    trace = Trace(head, lines.events)
    assert of(trace, ev.UpdateRequest)[-1].num_cut == 2
    assert decisions(fork_trace(trace, Change(step=1))) == decisions(trace)


def test_a_run_that_took_no_time_is_forked(crowd: Trace) -> None:
    timeless = Trace(crowd.header, [msgspec.structs.replace(event, ts=0) for event in crowd.events])
    require_sound(fork_trace(timeless, Change(step=1, knobs={"max_num_seqs": 2})))


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_changed_of_whatever_run_a_sound_run_follows(seed: int) -> None:
    rng = random.Random(seed)
    trace = play(draw_episode(seed + 40), Situations(), record=True).trace
    assert trace is not None
    if trace.types & {ev.KVTransferMatched, ev.KVTransferFinished}:
        with pytest.raises(TraceError, match="came from another engine"):
            fork_trace(trace, Change(step=steps(trace)[0]))
        return
    names = [event.request for event in of(trace, ev.RequestAdded)]
    said = said_by(trace)
    for _ in range(4):
        knobs: dict[str, Any] = {
            name: rng.choice(values)
            for name, values in {
                "max_num_batched_tokens": (1, 2, 7, 1 << 20),
                "max_num_seqs": (1, 2, 1 << 20),
                "long_prefill_token_threshold": (0, 1, 3),
            }.items()
            if rng.random() < 0.5
        }
        without = tuple(rng.sample(names, rng.choice((0, 0, 2))))
        forked = fork_trace(trace, Change(step=rng.choice(steps(trace)), knobs=knobs, without=without))
        require_sound(forked)
        assert {event.request for event in of(forked, ev.RequestFinished)} == set(names)
        for serial, token_ids in said_by(forked).items():
            both = min(len(token_ids), len(said.get(serial, [])))
            assert token_ids[:both] == said.get(serial, [])[:both]
        there, back = (diff_runs(Timeline(a), Timeline(b)) for a, b in ((trace, forked), (forked, trace)))
        assert there.is_same == back.is_same
        assert [(c.serial, len(c.fields)) for c in there.requests] == [(c.serial, len(c.fields)) for c in back.requests]
        assert not any(diff_runs(Timeline(forked), Timeline(forked)))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
@pytest.mark.parametrize(
    "change",
    [
        {"max_num_batched_tokens": 7},
        {"max_num_seqs": 2},
        {"long_prefill_token_threshold": 3, "max_num_seqs": 9},
    ],
    ids=str,
)
def test_limits_hold_from_the_fork_on(crowd: Trace, share: float, change: dict[str, Any]) -> None:
    step = steps(crowd)[int(share * len(steps(crowd)))]
    forked = fork_trace(crowd, Change(step=step, knobs=change))
    require_sound(forked)
    before = [event for event in forked.events if event.step < step]
    assert [(type(e), e.step) for e in before][:50] == [(type(e), e.step) for e in crowd.events if e.step < step][:50]
    threshold = change.get("long_prefill_token_threshold")
    narrowed = of(forked, ev.ConfigChanged)[-1]
    for event in of(forked, ev.StepStarted):
        if event.step >= step:
            budget = 16 if event.seq < narrowed.seq else narrowed.scheduler.max_num_batched_tokens
            assert event.token_budget == change.get("max_num_batched_tokens", budget)
    if threshold:
        rows = [event for event in of(forked, ev.ScheduleRequest) if event.step >= step]
        assert rows
        assert max(row.num_scheduled_tokens for row in rows) <= threshold
    assert len(of(forked, ev.RequestFinished)) == len(of(forked, ev.RequestAdded)) == len(of(crowd, ev.RequestAdded))


@pytest.mark.parametrize(
    "change",
    [
        {"num_gpu_blocks": 40},
        {"num_gpu_blocks": 18},
        {"block_size": 2},
        {"block_size": 8},
        {"enable_prefix_caching": False},
        {"policy": "priority"},
        {"policy": "fcfs"},
        {"num_speculative_tokens": 0},
    ],
    ids=str,
)
def test_what_a_core_is_made_with_changes_from_the_first_step_on(crowd: Trace, change: dict[str, Any]) -> None:
    forked = fork_trace(crowd, Change(step=1, knobs=change))
    require_sound(forked)
    assert len(of(forked, ev.RequestFinished)) == len(of(crowd, ev.RequestAdded))
    if not change.get("enable_prefix_caching", True):
        assert not of(forked, ev.KVTouched)
        assert of(crowd, ev.KVTouched)
    if change.get("num_gpu_blocks") == 40:
        assert len(of(forked, ev.SchedulePreempted)) < len(of(crowd, ev.SchedulePreempted))


def test_the_memory_stays_the_same_under_another_block_size(crowd: Trace) -> None:
    pool = fork_trace(crowd, Change(step=1, knobs={"block_size": 8})).header.kv_cache
    old = crowd.header.kv_cache
    assert (pool.num_gpu_blocks - 1) * pool.groups[0].block_bytes <= (old.num_gpu_blocks - 1) * old.groups[
        0
    ].block_bytes
    assert pool.num_gpu_blocks == 1 + (old.num_gpu_blocks - 1) * old.block_size // 8


def test_every_knob_is_tried_here() -> None:
    tried = {"max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold", "num_gpu_blocks", "block_size"}
    assert set(KNOBS) == tried | {"enable_prefix_caching", "policy", "num_speculative_tokens"}


def test_requests_say_the_same_in_other_steps() -> None:
    trace = read_trace(SHIPPED / "preemption.jsonl")
    forked = fork_trace(trace, Change(step=2, knobs={"max_num_seqs": 1}))
    require_sound(forked)
    assert steps(forked)[-1] > steps(trace)[-1]
    for said in (said_by(trace), said_by(forked)):
        assert said == said_by(trace)


def said_by(trace: AnyTrace) -> dict[int, list[int]]:
    said: dict[int, list[int]] = {}
    for event in of(trace, ev.UpdateRequest):
        said.setdefault(event.request, []).extend(event.appended)
    return said


def test_a_request_that_is_left_out_ends_where_it_would_begin() -> None:
    trace = read_trace(SHIPPED / "preemption.jsonl")
    forked = fork_trace(trace, Change(step=1, without=(1,)))
    require_sound(forked)
    (aborted,) = of(forked, ev.RequestAborted)
    assert aborted.requests == [1]
    assert not [row for row in of(forked, ev.ScheduleRequest) if row.request == 1]
    assert len(of(forked, ev.SchedulePreempted)) < len(of(trace, ev.SchedulePreempted))
    running = fork_trace(trace, Change(step=10, without=(1,)))
    require_sound(running)
    assert {row.step for row in of(running, ev.ScheduleRequest) if row.request == 1} <= set(range(10))


def test_a_stop_string_ends_a_request_behind_the_same_tokens(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    arguments = ["generate", "--model", "orrery-tiny", "--prompt", "Once upon a time", "--prompt", "The sea"]
    assert main([*arguments, "--max-tokens", "24", "--stop", "e", "--temperature", "0", "--trace", str(path)]) == 0
    trace = read_trace(path)
    assert any(event.cause == ev.STOP_STRING for event in of(trace, ev.RequestAborted))
    forked = fork_trace(trace, Change(step=1, knobs={"max_num_seqs": 1}))
    require_sound(forked)
    assert said_by(forked) == said_by(trace)
    assert {e.cause for e in of(forked, ev.RequestAborted)} == {ev.STOP_STRING}


def test_forks_fork(crowd: Trace) -> None:
    middle = steps(crowd)[len(steps(crowd)) // 2]
    once = fork_trace(crowd, Change(step=middle, knobs={"max_num_seqs": 2}))
    again = fork_trace(once, Change(step=middle + 5, knobs={"max_num_seqs": 6}))
    require_sound(again)
    assert len(of(again, ev.ConfigChanged)) >= 2
    assert decisions(fork_trace(once, Change(step=middle + 5))) == decisions(once)


def test_the_same_fork_is_the_same_to_the_last_byte(crowd: Trace) -> None:
    change = Change(step=4, knobs={"max_num_seqs": 3})
    one, other = fork_trace(crowd, change), fork_trace(crowd, change)
    assert msgspec.json.encode([one.header, *one.events]) == msgspec.json.encode([other.header, *other.events])
    assert one.header.environment["fork"] == "from step 4 on, max_num_seqs=3"


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        (Change(step=999), TraceError, "There is no step 999 to fork at: the trace holds steps 1 to 55."),
        (Change(step=0), TraceError, "There is no step 0"),
        (Change(step=1, without=(7,)), TraceError, "There is no request r7 in this trace: it has r0 to r3."),
        (Change(step=3, knobs={"num_gpu_blocks": 40}), ConfigError, "num_gpu_blocks is chosen at the start"),
        (Change(step=1, knobs={"warp": 9}), ConfigError, "There is no knob warp"),
        (Change(step=3, knobs={"max_num_seqs": 0}), ConfigError, "max_num_seqs must be an integer >= 1"),
        (Change(step=3, knobs={"max_num_seqs": True}), ConfigError, "max_num_seqs must be a number"),
        (Change(step=3, knobs={"max_num_seqs": 1 << 31}), ConfigError, "max_num_seqs must be at most 2147483647"),
        (Change(step=1, knobs={"num_gpu_blocks": 1 << 24}), ConfigError, "A fork has at most 1048576 blocks"),
        (Change(step=1, knobs={"num_gpu_blocks": 1}), ConfigError, "num_gpu_blocks must be at least 2"),
        (Change(step=1, knobs={"num_gpu_blocks": 3}), ConfigError, "max_model_len"),
        (Change(step=1, knobs={"block_size": 0}), ConfigError, "block_size"),
        (Change(step=1, knobs={"policy": "random"}), ConfigError, "policy"),
        (Change(step=1, knobs={"num_speculative_tokens": 2}), ConfigError, "nobody drafted"),
    ],
    ids=str,
)
def test_what_cannot_be_is_said_in_a_sentence(change: Change, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        fork_trace(read_trace(SHIPPED / "preemption.jsonl"), change)


def test_no_more_drafts_than_a_context_holds() -> None:
    with pytest.raises(ConfigError, match="num_speculative_tokens must be at most max_model_len=256"):
        fork_trace(
            read_trace(SHIPPED / "spec-ngram.jsonl"), Change(step=1, knobs={"num_speculative_tokens": 1_000_000})
        )


@pytest.mark.parametrize("name", ["r", "rr3", "-3", "²", "9" * 5000], ids=lambda name: name[:5])
def test_the_name_of_a_request_is_a_short_number(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fork", str(SHIPPED / "preemption.jsonl"), "--step", "1", "--without", name]) == 1
    assert f"--without takes the name of a request, such as r3, got {name[:40]!r}." in capsys.readouterr().err


def test_a_run_with_transfers_is_refused(tmp_path: Path) -> None:
    trace = record_crowd(tmp_path / "run.jsonl", connected=True)
    with pytest.raises(TraceError, match="came from another engine"):
        fork_trace(trace, Change(step=1))


def test_the_command_writes_a_trace_and_keeps_the_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = SHIPPED / "preemption.jsonl", tmp_path / "fork.jsonl"
    assert main(["fork", str(source), "--step", "10", "--max-num-seqs", "2", "--without", "r3", "-o", str(output)]) == 0
    assert "from step 10 on, max_num_seqs=2, without r3" in capsys.readouterr().out
    require_sound(read_trace(output))
    assert main(["fork", str(output), "--step", "10", "-o", str(output)]) == 1
    assert "name another file" in capsys.readouterr().err
