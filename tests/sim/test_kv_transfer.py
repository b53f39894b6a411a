"""KV from elsewhere in a trace: folded as it was, clean in every loop, and each of its facts is held to."""

from __future__ import annotations

import random
from collections import Counter, deque
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.core.engine_core import EngineCore
from engine.core.messages import ForwardFailure, ModelRunnerOutput, RequestStatus, SchedulerOutput
from engine.trace import events as ev
from engine.trace.file import Trace
from sim.invariants import check_trace
from sim.state import State
from sim.timeline import Timeline
from tests.core.driver import DiceConnector, core_of, header, record_crowd, request
from tests.sim.wrong import Wrong, assert_noticed, is_, plus, put

_WAITS = RequestStatus.WAITING_FOR_REMOTE_KVS.value


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return record_crowd(tmp_path_factory.mktemp("trace") / "crowd.jsonl", seed=2, num_requests=60, connected=True)


def situations(trace: Trace) -> Counter[str]:
    """What happened in a trace, so that a test can say that it did."""
    seen: Counter[str] = Counter()
    for event in trace.events:
        if isinstance(event, ev.RequestStatusChanged):
            seen[event.new] += 1
        elif isinstance(event, ev.ScheduleRequest) and event.num_remote_tokens:
            seen["rows on remote KV"] += 1
        elif isinstance(event, ev.KVHeld):
            seen["held"] += 1
            seen["held for both"] += event.sending and event.receiving
        elif isinstance(event, ev.KVFreed):
            seen["reclaimed"] += event.why.startswith("nothing else runs")
        elif isinstance(event, ev.ExecutorFailed):
            seen["failed"] += 1
    return seen


# --- real traces ------------------------------------------------------------------------------------------------


def test_traces_with_a_connector_keep_every_invariant(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in range(6):
        for engine_args in (
            {"policy": "fcfs", "num_blocks": 18},
            {"policy": "priority"},
            {"enable_prefix_caching": False},
            {"speculative_config": {"method": "eagle", "num_speculative_tokens": 3}},
        ):
            recorded = record_crowd(tmp_path / "crowd.jsonl", seed, connected=True, **engine_args)
            assert check_trace(recorded) == []
            seen += situations(recorded)
    for situation in (_WAITS, "preempted", "rows on remote KV", "held", "held for both", "reclaimed", "failed"):
        assert seen[situation], situation


class Film:
    """Keeps the events of a core as a reader would get them: the lists of a live event are the core's own."""

    def __init__(self) -> None:
        self.step = self.seq = 0
        self.events: list[ev.Event] = []

    def emit(self, event: ev.Event) -> None:
        self.seq += 1
        event.seq, event.step = self.seq, self.step
        self.events.append(msgspec.json.decode(msgspec.json.encode(event), type=ev.AnyEvent))


def run_ahead(seed: int, depth: int, **engine_args: Any) -> Trace:
    """The trace of a crowd with a connector, `depth` steps in flight, aborts and failed steps."""
    head = header(**{"max_num_batched_tokens": 16, "max_num_seqs": 6, "long_prefill_token_threshold": 5, **engine_args})
    rng, film, connector = random.Random(seed), Film(), DiceConnector(seed)
    core = core_of(head, film, connector)
    beginning = [rng.randrange(3, 99) for _ in range(20)]
    for number in range(30):
        prompt = beginning[: rng.randrange(20)] + [rng.randrange(3, 99) for _ in range(rng.randrange(1, 12))]
        core.add(request(f"q{number}", prompt, rng.randrange(3), max_tokens=rng.randrange(1, 25)))
    known: dict[int, int] = {}
    flying: deque[ModelRunnerOutput] = deque()
    while core.has_unfinished_requests() or flying:
        connector.report(core)
        if core.requests and rng.random() < 0.05:
            core.abort([rng.choice(list(core.requests))])
        plan = core.schedule()
        if plan.rows:
            flying.append(_answer(plan, known, rng))
        if flying and (len(flying) == depth or not plan.rows):
            output = flying.popleft()
            failed = rng.random() < 0.03
            core.update(output.step, ForwardFailure(step=output.step, why="out of memory") if failed else output)
    connector.report(core, everything=True)
    assert core.scheduler.kv_cache_manager.block_pool.num_blocks_in_use == 0
    return Trace(head, film.events)


def _answer(plan: SchedulerOutput, known: dict[int, int], rng: random.Random) -> ModelRunnerOutput:
    sampled: list[list[int]] = []
    for row in plan.rows:
        if row.new is not None:
            known[row.serial] = len(row.new.token_ids)
        complete = row.num_tokens_after >= known[row.serial]
        known[row.serial] += complete
        sampled.append([rng.randrange(2, 99)] if complete else [])
    return ModelRunnerOutput(step=plan.step, serials=[row.serial for row in plan.rows], sampled_token_ids=sampled)


@pytest.mark.parametrize("depth", [2, 3])
def test_they_keep_them_with_steps_in_flight(depth: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(6):
        for engine_args in ({"policy": "fcfs"}, {"policy": "priority", "num_blocks": 18}):
            recorded = run_ahead(seed, depth, **engine_args)
            assert check_trace(recorded) == []
            seen += situations(recorded)
    for situation in (_WAITS, "preempted", "rows on remote KV", "held", "failed"):
        assert seen[situation], situation


def test_any_step_can_be_looked_at() -> None:
    recorded = run_ahead(seed=1, depth=3)
    timeline = Timeline(recorded)
    assert situations(recorded)["held"]
    jumped = {number: timeline.step(number) for number in reversed(timeline.steps)}
    state = State.initial(recorded.header)
    for event in recorded.events:
        if isinstance(event, ev.ScheduleCalled):
            assert repr(jumped[event.step].before) == repr(state)
        state.apply(event)
        if isinstance(event, ev.StepScheduled):
            assert repr(jumped[event.step].planned) == repr(state)
    for view in jumped.values():
        assert {event.step for event in view.events} == {view.step}


# --- the state --------------------------------------------------------------------------------------------------


def test_a_block_that_is_held_is_in_use_by_a_request_that_has_ended(trace: Trace) -> None:
    state, held_before = State.initial(trace.header), list[tuple[State, str]]()
    for event in trace.events:
        state.apply(event)
        if isinstance(event, ev.RequestFinished):
            request = state.requests[event.request]
            assert request.holds_blocks == (request.sending or request.receiving)
            for block_id in (block_id for table in request.block_ids for block_id in table):
                assert event.request in state.pool.owners[block_id]
            if request.holds_blocks:
                copy = state.copy()
                held_before.append((copy, repr(copy)))
    assert len(held_before) > 5
    assert not any(request.holds_blocks or request.sending for request in state.requests.values())
    for copy, as_it_was in held_before:
        assert repr(copy) == as_it_was, "blocks that come back after the end must not reach older copies"


def test_tokens_that_have_arrived_are_computed(trace: Trace) -> None:
    state, arrived = State.initial(trace.header), 0
    for event in trace.events:
        state.apply(event)
        if isinstance(event, ev.RequestStatusChanged) and event.old == _WAITS and event.new == "waiting":
            request = state.requests[event.request]
            assert request.num_computed_tokens == request.num_hit_tokens + request.num_remote_tokens > 0
            assert request.num_computed_tokens < request.num_tokens
            arrived += 1
    assert arrived > 5


# --- one wrong fact ---------------------------------------------------------------------------------------------


def _receives(event: Any, state: State) -> bool:
    """`kv_transfer.done` lets a living request go on."""
    return any(state.requests[serial].status.value == _WAITS for serial in event.finished_receiving)


def _lets_go(event: Any, state: State) -> bool:
    return any(state.requests[serial].holds_blocks for serial in event.finished_sending)


def _after_the_end(event: Any, state: State) -> bool:
    return state.requests[event.request].ended


def _first_admission(event: Any, state: State) -> bool:
    return event.admission == "new" and event.num_remote_tokens > 0


def _is_admitted_with_it(event: Any, state: State) -> bool:
    request = state.requests[event.request]
    room, needs = request.num_tokens - 1 - request.num_hit_tokens, -(-request.num_tokens // state.block_size)
    return min(event.num_tokens, room) > 0 and needs <= state.pool.num_free


def _used_at_once(event: Any, state: State) -> bool:
    return not event.load_async and _is_admitted_with_it(event, state)


def _loaded_in_background(event: Any, state: State) -> bool:
    return event.load_async and _is_admitted_with_it(event, state)


WRONG = {
    "freed while it is sent": Wrong(
        "held blocks", ev.KVTransferDone, put(finished_sending=[]), _lets_go, shows_at=ev.KVFreed
    ),
    "freed although it will be sent": Wrong(
        "held blocks",
        ev.KVTransferFinished,
        put(sending=True),
        lambda e, s: not e.sending and s.requests[e.request].holds_blocks,
        shows_at=ev.KVFreed,
    ),
    "held in silence": Wrong("held blocks", ev.KVHeld, None, shows_at=ev.RequestFinished),
    "held for another reason": Wrong("held blocks", ev.KVHeld, put(sending=False), is_("sending", True)),
    "held for ever": Wrong("held blocks", ev.KVFreed, None, _after_the_end, shows_at=ev.ScheduleCalled),
    "goes on before its KV is here": Wrong(
        "remote tokens",
        ev.KVTransferDone,
        put(finished_receiving=[]),
        _receives,
        shows_at=ev.RequestStatusChanged,
    ),
    "reads KV that is not here": Wrong(
        "written before read", ev.KVTransferDone, put(finished_receiving=[]), _receives, shows_at=ev.StepScheduled
    ),
    "takes what nobody had": Wrong(
        "remote tokens", ev.KVTransferMatched, put(num_tokens=0), _used_at_once, shows_at=ev.ScheduleRequest
    ),
    "reads what nobody had": Wrong(
        "written before read", ev.KVTransferMatched, put(num_tokens=0), _used_at_once, shows_at=ev.StepScheduled
    ),
    "waits for what nobody has": Wrong(
        "remote tokens",
        ev.KVTransferMatched,
        put(num_tokens=0),
        _loaded_in_background,
        shows_at=ev.RequestStatusChanged,
    ),
    "waits for what is loaded at once": Wrong(
        "remote tokens",
        ev.KVTransferMatched,
        put(load_async=False),
        _loaded_in_background,
        shows_at=ev.RequestStatusChanged,
    ),
    "does not wait": Wrong(
        "remote tokens", ev.KVTransferMatched, put(load_async=True), _used_at_once, shows_at=ev.RequestStatusChanged
    ),
    "takes one more": Wrong("remote tokens", ev.ScheduleRequest, plus("num_remote_tokens"), _first_admission),
    "begins behind it": Wrong("computed tokens", ev.ScheduleRequest, plus("num_computed_tokens"), _first_admission),
    "reads behind it": Wrong(
        "written before read",
        ev.ScheduleRequest,
        plus("num_computed_tokens"),
        _first_admission,
        shows_at=ev.StepScheduled,
    ),
    "spared less than told": Wrong("clean end", ev.RequestFinished, plus("num_cached_tokens")),
}


@pytest.mark.parametrize("case", WRONG)
def test_one_wrong_fact_is_noticed(trace: Trace, case: str) -> None:
    assert_noticed(trace, WRONG[case])


def test_blocks_that_are_being_received_go_to_nobody_else(trace: Trace) -> None:
    state = State.initial(trace.header)
    for position, event in enumerate(trace.events):
        receiving = [r for r in state.requests.values() if r.receiving and r.serial != getattr(event, "request", None)]
        if isinstance(event, ev.KVAllocated) and receiving:
            stolen = receiving[0].block_ids[0][-1]
            thief = msgspec.structs.replace(event, block_ids=[stolen], evicted_block_ids=[], evicted_hashes=[])
            broken = check_trace(Trace(trace.header, [*trace.events[:position], thief]))
            assert {"possible facts", "handed out from the head"} <= {v.invariant for v in broken if v.seq == event.seq}
            assert f"block {stolen} is handed out, but it is not in free_block_queue" in broken[-1].sentence
            return
        state.apply(event)
    raise AssertionError("nobody got blocks while another received")


def test_held_blocks_come_back_once(trace: Trace) -> None:
    state = State.initial(trace.header)
    for position, event in enumerate(trace.events):
        if isinstance(event, ev.KVFreed) and state.requests[event.request].ended:
            again = msgspec.structs.replace(event, seq=event.seq + 1)
            broken = check_trace(Trace(trace.header, [*trace.events[: position + 1], again]))
            assert {violation.seq for violation in broken} == {again.seq}
            assert broken[-1].invariant == "possible facts"
            assert (
                broken[-1].sentence == f"r{event.request} gives up block {event.block_ids[0]}, which it does not hold"
            )
            return
        state.apply(event)
    raise AssertionError("no held block came back")


# --- the core ---------------------------------------------------------------------------------------------------


class Both:
    """A connector that has four tokens of everything, brings them in the background, and sends on whatever ends."""

    def get_num_new_matched_tokens(
        self, serial: int, token_ids: list[int], num_computed_tokens: int
    ) -> tuple[int, bool]:
        return 4, True

    def update_state_after_alloc(self, serial: int, block_ids: tuple[list[int], ...], num_tokens: int) -> None: ...

    def build_connector_meta(self, serials: list[int]) -> None: ...

    def request_finished(self, serial: int, block_ids: tuple[list[int], ...]) -> bool:
        return True


@pytest.mark.parametrize("first", ["receiving", "sending"])
def test_blocks_that_are_sent_and_received_wait_for_both(first: str) -> None:
    core: EngineCore = core_of(header(), kv_connector=Both())
    pool = core.scheduler.kv_cache_manager.block_pool
    core.add(request("a", [10, 11, 12, 13, 14, 15]))
    core.schedule()
    core.abort(["a"])
    assert pool.num_blocks_in_use == 1
    core.kv_done(*(([0], []) if first == "receiving" else ([], [0])))
    assert pool.num_blocks_in_use == 1
    core.kv_done(*(([], [0]) if first == "receiving" else ([0], [])))
    assert pool.num_blocks_in_use == 0
