"""Every invariant holds on real traces, and is broken by one wrong fact, whose event it names."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console

from engine.core.messages import RequestStatus
from engine.trace import events as ev
from engine.trace.file import Trace
from sim.invariants import INVARIANTS, check, check_trace, render
from sim.state import State
from tests.core.driver import record_crowd
from tests.sim.test_kv_transfer import WRONG as WRONG_TRANSFERS
from tests.sim.test_speculation import WRONG as WRONG_SPECULATION
from tests.sim.wrong import Wrong, assert_noticed, edited, first_one, has, is_, plus, put, several, turned


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """A crowd in a small pool; its steps got the tensors that a worker would have built from their plans."""
    recorded = record_crowd(tmp_path_factory.mktemp("trace") / "crowd.jsonl", seed=1, num_requests=60)
    return with_forward(recorded)


def with_forward(trace: Trace) -> Trace:
    """Add `forward.inputs` and `forward.logits` where a trace of level forward has them."""
    state, events = State.initial(trace.header), list[ev.Event]()
    for event in trace.events:
        state.apply(event)
        events.append(event)
        if isinstance(event, ev.StepScheduled) and event.requests:
            events.append(_inputs(state, event))
        if isinstance(event, ev.StepOutput):
            events.insert(-1, _logits(event))
    for seq, event in enumerate(events, start=1):
        event.seq = seq
    return Trace(msgspec.structs.replace(trace.header, level="forward"), events)


def _inputs(state: State, scheduled: ev.StepScheduled) -> ev.ForwardInputs:
    inputs = ev.ForwardInputs(
        step=scheduled.step, ts=scheduled.ts, requests=scheduled.requests, input_ids=[], positions=[],
        slot_mapping=[], query_start_loc=[0], seq_lens=[], block_tables=[], logits_indices=[],
    )  # fmt: skip
    for serial, num_tokens in zip(scheduled.requests, scheduled.num_scheduled_tokens, strict=True):
        request, size = state.requests[serial], state.block_size
        table = request.block_ids[0]
        positions = range(request.num_computed_tokens - num_tokens, request.num_computed_tokens)
        inputs.input_ids += [request.token_ids[position] for position in positions]
        inputs.positions += positions
        inputs.slot_mapping += [table[position // size] * size + position % size for position in positions]
        inputs.query_start_loc.append(len(inputs.input_ids))
        inputs.seq_lens.append(positions.stop)
        inputs.block_tables.append(table.copy())
        inputs.logits_indices.append(len(inputs.input_ids) - 1)
    return inputs


def _logits(output: ev.StepOutput) -> ev.ForwardLogits:
    sampled = {s: ids[-1] for s, ids in zip(output.requests, output.sampled_token_ids, strict=True) if ids}
    return ev.ForwardLogits(
        step=output.step, ts=output.ts, requests=list(sampled), top_token_ids=[], top_logits=[], top_probs=[],
        sampled_token_ids=list(sampled.values()),
    )  # fmt: skip


def test_real_traces_keep_every_invariant(trace: Trace) -> None:
    report = check(trace)
    assert report.violations == []
    assert report.stopped_at is None
    assert report.num_events == len(trace.events)
    assert {name for name, looks in report.num_looks.items() if looks} == {each.name for each in INVARIANTS}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "engine_args",
    [
        {"policy": "priority"},
        {"enable_prefix_caching": False},
        {"prefix_caching_hash_algo": "builtin"},
        {"num_blocks": 18},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"speculative_config": {"method": "eagle", "num_speculative_tokens": 2}, "policy": "priority"},
    ],
    ids=str,
)
def test_they_hold_under_every_policy(tmp_path: Any, seed: int, engine_args: dict[str, Any]) -> None:
    recorded = record_crowd(tmp_path / "crowd.jsonl", seed, **engine_args)
    assert any(isinstance(event, ev.SchedulePreempted) for event in recorded.events)
    assert check_trace(recorded) == []


def test_a_trace_cut_anywhere_keeps_them(trace: Trace) -> None:
    for cut in range(0, 600, 7):
        ended = [
            v for v in check_trace(Trace(trace.header, trace.events[:cut])) if "its end was not told" not in v.sentence
        ]
        assert ended == []


# --- one wrong fact per invariant -------------------------------------------------------------------------------


def _sampled_row(event: Any, state: State) -> bool:
    return event.dropped is None and len(event.appended) == 1


CAPPED, STOPPED = RequestStatus.FINISHED_LENGTH_CAPPED.value, RequestStatus.FINISHED_STOPPED.value
WRONG = {
    "frees what it lacks": Wrong("possible facts", ev.KVFreed, put(block_ids=[0], ref_counts=[0])),
    "time runs backwards": Wrong("order of events", ev.StepScheduled, put(ts=0)),
    "seq stands still": Wrong("order of events", ev.StepScheduled, plus("seq", -1)),
    "waits, then preempted": Wrong(
        "life of a request", ev.RequestStatusChanged, put(new="preempted"), is_("new", "running")
    ),
    "born running": Wrong("life of a request", ev.RequestStatusChanged, put(new="running"), is_("old", None)),
    "same id twice": Wrong("life of a request", ev.RequestAdded, put(request_id="q0"), is_("request", 1)),
    "ends with blocks": Wrong(
        "clean end", ev.KVFreed, None, lambda e, s: s.requests[e.request].finished, shows_at=ev.RequestFinished
    ),
    "ends with another count": Wrong("clean end", ev.RequestFinished, plus("num_output_tokens")),
    "ends otherwise": Wrong("clean end", ev.RequestFinished, put(finish_reason="error")),
    "late token": Wrong(
        "nothing after the end", ev.UpdateRequest, put(dropped=None, appended=[5]), is_("dropped", "finished")
    ),
    "another token": Wrong(
        "output taken in", ev.UpdateRequest, lambda e: {"appended": [e.appended[0] + 1]}, _sampled_row
    ),
    "token cut unseen": Wrong("output taken in", ev.UpdateRequest, plus("num_cut"), _sampled_row),
    "token lost": Wrong("output taken in", ev.UpdateRequest, None, _sampled_row, shows_at=ev.ScheduleCalled),
    "output for others": Wrong("output taken in", ev.StepOutput, turned("requests"), several("requests")),
    "ends too early": Wrong("stop conditions", ev.RequestStatusChanged, put(new=STOPPED), is_("new", CAPPED)),
    "goes on behind its end": Wrong(
        "stop conditions",
        ev.RequestAdded,
        lambda e: {"sampling_params": msgspec.structs.replace(e.sampling_params, max_tokens=1)},
        lambda e, s: e.sampling_params.max_tokens > 5,
        shows_at=ev.StepStarted,
    ),
    "begins with more": Wrong("token budget", ev.StepStarted, plus("token_budget")),
    "counts wrong": Wrong("token budget", ev.ScheduleRequest, plus("budget_left")),
    "total is not the sum": Wrong("token budget", ev.StepScheduled, plus("total_num_scheduled_tokens")),
    "more left than is": Wrong("token budget", ev.StepScheduled, plus("budget_left")),
    "plan turned round": Wrong("plan of the step", ev.StepScheduled, turned("requests"), several("requests")),
    "plan of other sizes": Wrong(
        "plan of the step", ev.StepScheduled, first_one("num_scheduled_tokens"), has("requests")
    ),
    "cut by nothing": Wrong(
        "tokens given", ev.ScheduleRequest, put(truncated_by=None), lambda e, s: e.truncated_by is not None
    ),
    "wants another number": Wrong("tokens given", ev.ScheduleRequest, plus("num_wanted_tokens")),
    "beyond the threshold": Wrong(
        "tokens given",
        ev.ScheduleRequest,
        plus("num_scheduled_tokens"),
        is_("truncated_by", "long_prefill_token_threshold"),
    ),
    "skips a token": Wrong(
        "computed tokens", ev.ScheduleRequest, plus("num_computed_tokens"), is_("admission", "running")
    ),
    "loses more than it had": Wrong("computed tokens", ev.SchedulePreempted, plus("num_computed_tokens")),
    "stands elsewhere": Wrong("computed tokens", ev.UpdateRequest, plus("num_computed_tokens"), _sampled_row),
    "no slot": Wrong("slots for tokens", ev.KVAllocated, None, shows_at=ev.StepScheduled),
    "running queue turned": Wrong("queues in order", ev.StepStarted, turned("running"), several("running")),
    "waiting queue turned": Wrong("queues in order", ev.StepStarted, turned("waiting"), several("waiting")),
    "somebody else waits": Wrong("queues in order", ev.StepStarted, plus("num_waiting")),
    "passed over": Wrong(
        "serving order",
        ev.RequestStatusChanged,
        lambda e: {"request": e.request + 1},
        lambda e, s: e.new == "running" and e.old == "waiting" and (e.request + 1 in s.waiting),
    ),
    "running comes late": Wrong(
        "serving order",
        ev.ScheduleRequest,
        put(admission="new"),
        lambda e, s: s.plan is not None and (not s.plan.rows) and (len(s.running) > 1) and (not s.plan.preempted),
        shows_at=ev.ScheduleRequest,
    ),
    "blocks were there": Wrong("victims", ev.SchedulePreempted, put(needed=0)),
    "blocks miscounted": Wrong("victims", ev.SchedulePreempted, plus("available", -1)),
    "wrong victim": Wrong(
        "victims",
        ev.SchedulePreempted,
        lambda e: {"victim": e.for_request, "was_scheduled": False},
        lambda e, s: e.victim != e.for_request,
    ),
    "admitted all the same": Wrong(
        "nothing new after a preemption",
        ev.ScheduleRequest,
        put(admission="resumed"),
        lambda e, s: s.plan is not None and bool(s.plan.preempted),
    ),
    "free blocks miscounted": Wrong("block conservation", ev.StepScheduled, plus("free_blocks")),
    "block vanishes": Wrong("block conservation", ev.KVTouched, lambda e: {"ref_counts": [0] * len(e.ref_counts)}),
    "one holder too many": Wrong("reference counts", ev.KVTouched, first_one("ref_counts")),
    "still counted when freed": Wrong("reference counts", ev.KVFreed, first_one("ref_counts")),
    "free and in use": Wrong(
        "free queue", ev.KVTouched, first_one("ref_counts", -1), lambda e, s: e.ref_counts[0] == 1
    ),
    "out of the middle": Wrong("handed out from the head", ev.KVAllocated, turned("block_ids"), several("block_ids")),
    "head first": Wrong("freed tail first", ev.KVFreed, turned("block_ids"), several("block_ids")),
    "passed by no window": Wrong("passed by the window", ev.KVFreed, put(by_window=True)),
    "keeps its first": Wrong(
        "freed tail first",
        ev.KVFreed,
        lambda e: {"block_ids": e.block_ids[:-1], "ref_counts": e.ref_counts[:-1]},
        several("block_ids"),
    ),
    "evicted in silence": Wrong(
        "evicted when handed out",
        ev.KVAllocated,
        put(evicted_block_ids=[], evicted_hashes=[]),
        has("evicted_block_ids"),
    ),
    "another hash": Wrong("hash of its tokens", ev.KVCached, lambda e: {"hashes": ["00" * 32, *e.hashes[1:]]}),
    "another parent": Wrong("hash of its tokens", ev.KVCached, put(parent="00" * 32)),
    "another salt": Wrong("hash of its tokens", ev.RequestAdded, put(cache_salt="x"), shows_at=ev.KVCached),
    "another place": Wrong("hash of its tokens", ev.KVCached, plus("first_block")),
    "the whole prompt": Wrong(
        "never the whole prompt", ev.KVLookup, lambda e: {"num_hit_tokens": e.num_queried_tokens}
    ),
    "not the longest": Wrong(
        "prefix hits",
        ev.KVLookup,
        lambda e: {"num_hit_tokens": e.num_hit_tokens - 4, "block_ids": [e.block_ids[0][:-1]]},
        has("num_hit_tokens"),
    ),
    "somebody else's block": Wrong(
        "prefix hits",
        ev.KVLookup,
        lambda e: {"block_ids": [[*e.block_ids[0][:-1], 23 - e.block_ids[0][-1]]]},
        has("num_hit_tokens"),
    ),
    "shares what was not found": Wrong(
        "prefix hits", ev.KVTouched, lambda e: {"block_ids": e.block_ids[:-1], "ref_counts": e.ref_counts[:-1]}
    ),
    "spared more": Wrong("prefix hits", ev.ScheduleRequest, plus("num_cached_tokens", 4), is_("admission", "new")),
    "stays findable": Wrong("written before read", ev.KVUncached, None, shows_at=ev.ScheduleCalled),
    "reads what nobody wrote": Wrong(
        "written before read",
        ev.KVTouched,
        lambda e: {"block_ids": [23, *e.block_ids[1:]]},
        lambda e, s: 23 in s.pool.free_block_queue and s.pool.hashes[23] is None,
        shows_at=ev.StepScheduled,
    ),
    "other positions": Wrong("super-sequence", ev.ForwardInputs, first_one("positions")),
    "other tokens": Wrong("super-sequence", ev.ForwardInputs, first_one("input_ids")),
    "other slots": Wrong("super-sequence", ev.ForwardInputs, first_one("slot_mapping")),
    "other lengths": Wrong("super-sequence", ev.ForwardInputs, first_one("seq_lens")),
    "other tables": Wrong("super-sequence", ev.ForwardInputs, lambda e: {"block_tables": [[] for _ in e.block_tables]}),
    "too many tokens": Wrong("super-sequence", ev.ForwardInputs, lambda e: {"input_ids": [*e.input_ids, 1]}),
    "another request runs": Wrong("super-sequence", ev.ForwardInputs, first_one("requests")),
    "sampled another": Wrong(
        "sampled tokens", ev.ForwardLogits, first_one("sampled_token_ids"), has("requests"), shows_at=ev.StepOutput
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_one_wrong_fact_breaks_it(trace: Trace, case: str) -> None:
    assert_noticed(trace, WRONG[case])


def _with_limits(header: ev.Header, **limits: int) -> ev.Header:
    scheduler = msgspec.structs.replace(header.config.scheduler, **limits)
    return msgspec.structs.replace(header, config=msgspec.structs.replace(header.config, scheduler=scheduler))


def test_running_more_than_max_num_seqs_is_named(trace: Trace) -> None:
    broken = check_trace(Trace(_with_limits(trace.header, max_num_seqs=5), trace.events))
    assert {violation.invariant for violation in broken} == {"max_num_seqs"}
    state = State.initial(trace.header)
    for event in trace.events:
        state.apply(event)
        if len(state.running) == 6:
            assert broken[0].seq == event.seq
            return


def test_going_beyond_max_model_len_is_named(trace: Trace) -> None:
    longest = max(trace.events, key=lambda e: len(e.prompt_token_ids) if isinstance(e, ev.RequestAdded) else 0)
    assert isinstance(longest, ev.RequestAdded)
    limit = len(longest.prompt_token_ids) - 1
    header = msgspec.structs.replace(
        trace.header, model=msgspec.structs.replace(trace.header.model, max_model_len=limit)
    )
    broken = [v for v in check_trace(Trace(header, trace.events)) if v.invariant == "max_model_len"]
    assert longest.seq in [violation.seq for violation in broken]
    assert {type(event) for event in trace.events if event.seq in {v.seq for v in broken}} >= {ev.ScheduleRequest}


@pytest.mark.parametrize("number", [2**40, -(2**40)])
@pytest.mark.parametrize("name", ["num_computed_tokens", "num_scheduled_tokens"])
def test_a_number_beyond_all_bounds_is_named_and_not_counted_out(trace: Trace, number: int, name: str) -> None:
    false, event = edited(trace, Wrong("", ev.ScheduleRequest, put(**{name: number})))
    assert event.seq in [violation.seq for violation in check_trace(false)]


def test_planned_tokens_beyond_all_bounds_are_not_counted_out(trace: Trace) -> None:
    wrong = Wrong("", ev.StepScheduled, first_one("num_scheduled_tokens", 2**40), has("requests"))
    false, event = edited(trace, wrong)
    assert event.seq in [violation.seq for violation in check_trace(false)]


def test_every_invariant_has_been_broken_here() -> None:
    broken = {wrong.invariant for wrong in (*WRONG.values(), *WRONG_TRANSFERS.values(), *WRONG_SPECULATION.values())}
    assert broken | {"max_num_seqs", "max_model_len"} == {invariant.name for invariant in INVARIANTS}


def test_an_end_that_is_not_told_is_found_at_the_end(trace: Trace) -> None:
    last = max(i for i, event in enumerate(trace.events) if isinstance(event, ev.RequestFinished))
    broken = check_trace(Trace(trace.header, [*trace.events[:last], *trace.events[last + 1 :]]))
    assert [violation.invariant for violation in broken] == ["life of a request"]
    assert "its end was not told" in broken[0].sentence


def test_text_that_ends_twice_is_named(trace: Trace) -> None:
    seq = trace.events[-1].seq
    ends = [ev.OutputText(seq=seq + n, ts=10**15, request=0, delta="", stop=None, finished=True) for n in (1, 2)]
    broken = check_trace(Trace(trace.header, [*trace.events, *ends]))
    assert [(violation.invariant, violation.seq) for violation in broken] == [("nothing after the end", seq + 2)]


def test_nothing_is_checked_behind_an_impossible_event(trace: Trace) -> None:
    false, event = edited(trace, WRONG["frees what it lacks"])
    report = check(false)
    assert report.stopped_at == event.seq
    assert report.violations[-1].seq == event.seq
    assert report.num_events < len(false.events)


def test_the_table_names_every_invariant_and_the_event(trace: Trace) -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render(check(trace)))
    whole = console.export_text()
    assert all(invariant.name in whole for invariant in INVARIANTS)
    assert f"{len(trace.events):,} events, 0 violations" in whole
    console.print(render(check(trace), verbose=True))
    stated = " ".join(console.export_text().split())
    assert INVARIANTS[1].statement.split()[0] in stated and "looks" in stated
    false, event = edited(trace, WRONG["head first"])
    console.print(render(check(false)))
    told = console.export_text()
    assert f"freed tail first at event {event.seq} (step {event.step})" in " ".join(told.split())
    assert "✗" in told
