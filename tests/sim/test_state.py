"""The state folded from events is the state of the core that emitted them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.trace import events as ev
from engine.trace.file import Trace
from sim.state import State, StateError
from sim.timeline import Timeline
from tests.core.driver import FULL, Crowd, DiceConnector, core_of, header, record_crowd, request, run_step, window_of

SMALL: dict[str, Any] = {"max_num_batched_tokens": 16, "max_num_seqs": 6, "long_prefill_token_threshold": 5}


class Shadow:
    """Folds a core's events as they are emitted, and compares the two before every plan and before every answer."""

    def __init__(self, head: ev.Header, kv_connector: DiceConnector | None = None) -> None:
        self.step = 0
        self.seq = 0
        self.comparisons = 0
        self.preemptions = 0
        self.state = State.initial(head)
        self.core = core_of(head, self, kv_connector)

    def emit(self, event: ev.Event) -> None:
        if isinstance(event, (ev.ScheduleCalled, ev.StepOutput, ev.ExecutorFailed)):
            self.compare()
        self.seq += 1
        event.seq, event.step = self.seq, self.step
        # Through JSON, as a reader gets it: the lists of a live event are the core's own.
        self.state.apply(msgspec.json.decode(msgspec.json.encode(event), type=ev.AnyEvent))
        self.preemptions += isinstance(event, ev.SchedulePreempted)

    def compare(self) -> None:
        state, scheduler = self.state, self.core.scheduler
        pool = scheduler.kv_cache_manager.block_pool
        assert state.running == [live.serial for live in scheduler.running]
        assert state.waiting == [live.serial for live in scheduler.waiting.first(1000)]
        assert list(state.pool.free_block_queue) == [block.block_id for block in pool.free_block_queue]
        assert state.pool.ref_counts == [block.ref_count for block in pool.blocks]
        assert state.pool.hashes == [str(block.block_hash) if block.block_hash else None for block in pool.blocks]
        for live in (*scheduler.running, *scheduler.waiting.first(1000)):
            told = state.requests[live.serial]
            assert told.token_ids == live.token_ids
            assert told.draft_token_ids == live.spec_token_ids
            assert told.num_computed_tokens == live.num_computed_tokens
            assert told.status is live.status
            assert told.num_preemptions == live.num_preemptions
            assert tuple(told.block_ids) == scheduler.kv_cache_manager.block_ids(live)
        self.comparisons += 1


@pytest.mark.parametrize(
    "engine_args",
    [
        {},
        {"policy": "priority"},
        {"enable_prefix_caching": False},
        {"num_blocks": 18},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"speculative_config": {"method": "eagle", "num_speculative_tokens": 2}, "policy": "priority"},
        {"num_blocks": 10, "block_size": 8},
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_state_is_the_state_of_the_core(seed: int, engine_args: dict[str, Any]) -> None:
    shadow = Shadow(header(**SMALL, **engine_args))
    Crowd(seed, num_drafts=3 if "speculative_config" in engine_args else 0).drive(shadow.core)
    shadow.compare()
    assert shadow.comparisons > 60
    assert shadow.preemptions > 0
    assert len(shadow.state.requests) == 30
    assert all(told.ended for told in shadow.state.requests.values())


@pytest.mark.parametrize("engine_args", [{}, {"policy": "priority"}, {"num_blocks": 18}], ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_it_is_with_kv_from_elsewhere(seed: int, engine_args: dict[str, Any]) -> None:
    connector = DiceConnector(seed)
    shadow = Shadow(header(**SMALL, **engine_args), connector)
    Crowd(seed, connector=connector).drive(shadow.core)
    shadow.compare()
    assert shadow.comparisons > 60
    assert any(told.num_remote_tokens for told in shadow.state.requests.values())
    assert not any(told.holds_blocks for told in shadow.state.requests.values())


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return record_crowd(tmp_path_factory.mktemp("trace") / "crowd.jsonl", seed=3)


def test_a_copy_does_not_change_with_the_state(trace: Trace) -> None:
    state = State.initial(trace.header)
    kept: list[tuple[State, str]] = []
    for position, event in enumerate(trace.events):
        if position % 20 == 0:
            copy = state.copy()
            kept.append((copy, repr(copy)))
        state.apply(event)
    assert len(kept) > 20
    for copy, as_it_was in kept:
        assert repr(copy) == as_it_was


def test_text_that_comes_after_the_end_does_not_reach_older_copies(trace: Trace) -> None:
    state = State.initial(trace.header).fold(trace.events)
    copy = state.copy()
    state.apply(ev.OutputText(seq=10**6, request=0, delta=" late", stop="late", finished=True))
    assert state.requests[0].text == " late"
    assert state.requests[0].stop_string == "late"
    assert copy.requests[0].text == ""


def test_blocks_know_their_tokens_their_kind_and_who_filled_them(tmp_path: Path) -> None:
    shadow = Shadow(header(num_blocks=24, block_size=4))
    shadow.core.add(request("a", [10, 11, 12, 13, 14, 15], max_tokens=1, ignore_eos=True))
    run_step(shadow.core)
    pool = shadow.state.pool
    assert shadow.state.requests[0].ended
    assert pool.block(0).kind == "null"
    assert pool.block(1).kind == "cached"
    assert shadow.state.block_token_ids(1) == [10, 11, 12, 13]
    assert shadow.state.block_token_ids(2) == []  # never full, so nobody can find it

    for name in ("b", "c"):
        shadow.core.add(request(name, [10, 11, 12, 13, 20, 21], max_tokens=2, ignore_eos=True))
    run_step(shadow.core)
    shared = pool.block(1)
    assert (shared.kind, shared.ref_count, shared.owners) == ("shared", 2, (1, 2))
    assert shared.origin is not None and shared.origin.request == 0
    own = shadow.state.requests[1].block_ids[0][1]
    assert pool.block(own).kind == "in use"
    assert shadow.state.block_token_ids(own) == [20, 21]
    assert sum(pool.counts().values()) == 24
    assert pool.num_in_use == pool.counts()["in use"] + pool.counts()["shared"] == 3
    assert pool.counts(range(2)) == {"null": 1, "free": 0, "cached": 0, "in use": 0, "shared": 1}
    assert pool.counts(range(20, 24)) == {"null": 0, "free": 4, "cached": 0, "in use": 0, "shared": 0}


def test_cached_blocks_form_chains_that_begin_at_the_none_hash(tmp_path: Path) -> None:
    timeline = Timeline(record_crowd(tmp_path / "crowd.jsonl", groups=(FULL, window_of(6)), num_blocks=40))
    longest = 0
    for number in timeline.steps:
        state = timeline.step(number).planned
        for origin in filter(None, state.pool.origins):
            request = state.requests[origin.request]
            before = timeline.header.kv_cache.none_hash
            if origin.place and origin.place <= len(request.block_hashes):
                before = request.block_hashes[origin.place - 1]
                longest = max(longest, origin.place)
            elif origin.place:
                continue  # its parent was filled by output, whose hashes nobody looked up
            assert origin.parent == before
    assert longest > 1


def test_counts_of_a_part_of_a_pool_are_those_of_its_blocks(tmp_path: Path) -> None:
    timeline = Timeline(record_crowd(tmp_path / "crowd.jsonl", num_requests=12))
    kinds = set()
    for number in timeline.steps:
        pool = timeline.step(number).planned.pool
        for part in (range(7), range(7, 19), range(19, 24), range(24)):
            counted = Counter(pool.block(block_id).kind for block_id in part)
            assert pool.counts(part) == {kind: counted[kind] for kind in pool.counts()}
            kinds |= set(counted)
    assert kinds == {"null", "free", "cached", "in use", "shared"}


def test_pieces_of_tokens() -> None:
    state = State.initial(header())
    state.apply(ev.TokenPieces(seq=1, token_ids=[5, 6], pieces=[b" sea", b"\xe2\x82"]))
    assert state.piece_text(5) == " sea"
    assert state.piece_text(6) == "�"
    assert state.piece_text(7) == "#7"


def test_a_window_that_moves_on_leaves_the_null_block_behind(trace: Trace) -> None:
    freed_at = next(i for i, e in enumerate(trace.events) if isinstance(e, ev.KVFreed) and len(e.block_ids) > 2)
    freed = trace.events[freed_at]
    assert isinstance(freed, ev.KVFreed)
    state = State.initial(trace.header).fold(trace.events[:freed_at])
    table = list(reversed(freed.block_ids))
    assert state.requests[freed.request].block_ids == [table]
    ref_count = len(state.pool.owners[table[0]]) - 1
    passed = {"block_ids": table[:1], "ref_counts": [ref_count], "why": "window", "by_window": True}
    state.apply(msgspec.structs.replace(freed, **passed))
    assert state.requests[freed.request].block_ids == [[0, *table[1:]]]
    state.apply(msgspec.structs.replace(freed, block_ids=freed.block_ids[:-1], ref_counts=freed.ref_counts[:-1]))
    assert state.requests[freed.request].block_ids == [[]]


IMPOSSIBLE: dict[str, tuple[type[ev.Event], dict[str, Any], str]] = {
    "unknown request": (ev.UpdateRequest, {"request": 99}, "no request r99 has been added"),
    "serial twice": (ev.RequestAdded, {"request": 0}, "r0 has been added before"),
    "wrong old status": (ev.RequestStatusChanged, {"old": "preempted", "new": "running"}, "was preempted, but it is"),
    "block not free": (ev.KVAllocated, {"block_ids": [0]}, "block 0 is handed out, but it is not in free_block_queue"),
    "block not held": (ev.KVFreed, {"block_ids": [0], "ref_counts": [0]}, "gives up block 0, which it does not hold"),
    "no such block": (ev.KVFreed, {"block_ids": [24], "ref_counts": [0]}, "there is no block 24, the pool has 24"),
    "no such group": (ev.KVFreed, {"group": 1}, "there is no KV cache group 1"),
    "step not in flight": (ev.StepOutput, {"step": 10**6}, "step 1000000 is not in flight"),
    "hash not borne": (ev.KVAllocated, {"evicted_block_ids": [1], "evicted_hashes": ["ff"]}, "loses the hash ff"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_an_impossible_event_is_named(trace: Trace, case: str) -> None:
    event_type, edit, why = IMPOSSIBLE[case]
    # Past the first: serial 0 is taken then, and block 1 has a history.
    position = [i for i, event in enumerate(trace.events) if isinstance(event, event_type)][1]
    wrong = msgspec.structs.replace(trace.events[position], **edit)
    state = State.initial(trace.header).fold(trace.events[:position])
    with pytest.raises(StateError, match=why) as refused:
        state.apply(wrong)
    assert f"event {wrong.seq}, {wrong.__struct_config__.tag}" in str(refused.value)
    assert refused.value.event is wrong
