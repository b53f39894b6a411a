"""The reasons: right in what they count, in the order of the decisions, with a place in the code that exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.core.engine_core import EngineCore
from engine.core.messages import ForwardFailure
from engine.core.seams import KVConnector
from engine.sampling_params import GrammarSpec
from engine.trace import events as ev
from engine.trace.file import read_trace
from engine.trace.recorder import Recorder
from sim.timeline import StepView, Timeline
from tests.core.driver import core_of, header, record_crowd, request, run_step, window_of
from tests.viz.conftest import shipped
from viz.explain import NO_DECISION, RULES, TELLERS, Reason, explain
from viz.source import ROOT, Place


class Run:
    """A core whose steps are explained when it is done."""

    def __init__(self, path: Path, kv_connector: KVConnector | None = None, **engine_args: Any) -> None:
        self.path = path
        self.recorder = Recorder.to_file(path, header(**engine_args))
        self.core: EngineCore = core_of(header(**engine_args), self.recorder, kv_connector)

    def add(self, name: str, num_tokens: int, first: int = 10, **params: Any) -> None:
        prompt = list(range(first, first + num_tokens))
        self.core.add(request(name, prompt, **{"max_tokens": 8, "ignore_eos": True, **params}))

    def step(self, number: int) -> StepView:
        self.recorder.flush()
        return Timeline(read_trace(self.path)).step(number)

    def said(self, number: int, *, details: bool = False) -> list[str]:
        return [f"{r.name} {r.sentence}".strip() for r in explain(self.step(number)) if details or not r.detail]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def test_a_prompt_cut_by_what_the_decodes_left(path: Path) -> None:
    run = Run(path, max_num_batched_tokens=12)
    run.add("a", 4)
    run.add("b", 5, first=30)
    run_step(run.core)
    run.add("c", 14, first=50)
    run.add("d", 3, first=70)
    run_step(run.core)
    run_step(run.core)
    assert run.said(1) == ["r0 4 tokens: its whole prompt", "r1 5 tokens: its whole prompt"]
    assert run.said(2) == [
        "r0 1 token: it is decoding",
        "r1 1 token: it is decoding",
        "r2 10 of 14 tokens: the budget of 12 had 10 left after the decodes",
        "r3 stays in waiting: no budget is left in this step",
    ]
    assert run.said(3)[2:] == ["r2 4 tokens: the rest of its prompt", "r3 3 tokens: its whole prompt"]


def test_a_prompt_longer_than_the_budget_or_the_threshold(path: Path) -> None:
    run = Run(path, max_num_batched_tokens=12)
    run.add("a", 20)
    run_step(run.core)
    assert run.said(1) == ["r0 12 of 20 tokens: the budget is 12"]


def test_a_prompt_longer_than_the_threshold(path: Path) -> None:
    run = Run(path, long_prefill_token_threshold=6)
    run.add("a", 20)
    run_step(run.core)
    assert run.said(1) == ["r0 6 of 20 tokens: long_prefill_token_threshold is 6"]


def test_shared_blocks_and_a_whole_prompt_that_is_cached(path: Path) -> None:
    run = Run(path)
    run.add("a", 8)
    run_step(run.core)
    run.add("b", 8)
    run_step(run.core)
    said = run.said(2, details=True)
    assert "r1 finds 4 of its 8 tokens in the cache; one token at least is always computed" in said
    assert "r1 1 block shared: its hash was in cached_block_hash_to_block" in said
    assert "r1 4 tokens: the rest of its prompt, 4 were cached" in said


def test_a_sliding_window(path: Path) -> None:
    run = Run(path, groups=(window_of(6),))
    run.add("a", 13)
    run_step(run.core)
    run.add("b", 14)
    run_step(run.core)
    said = run.said(2, details=True)
    assert "r0 its sliding window has passed blocks 2 1: given up, the null block takes their place" in said
    shared = "r1 2 blocks shared, 1 of them revived from free_block_queue: their hashes were in"
    assert f"{shared} cached_block_hash_to_block; of the 3 found, its sliding window sees only these" in said


def test_seats_and_blocks_that_are_missing(path: Path) -> None:
    run = Run(path, num_blocks=17, max_num_seqs=2)
    run.add("a", 40, max_tokens=2)
    run.add("b", 30, first=60)
    run.add("c", 3)
    run_step(run.core)
    run_step(run.core)
    assert run.said(1)[-1] == "r1 stays in waiting: needs 8 blocks, free_block_queue holds 6, with 1 more behind it"
    assert "r0 ends: it has its 2 tokens, max_tokens" in run.said(2)
    run_step(run.core)
    run.add("d", 3)
    run_step(run.core)
    assert run.said(4)[-1] == "r3 stays in waiting: 2 run already, and max_num_seqs allows no more"


def test_victims(path: Path) -> None:
    run = Run(path, num_blocks=17, enable_prefix_caching=False)
    run.add("a", 32, max_tokens=20)
    run.add("b", 31, first=60, max_tokens=20)
    for _ in range(4):
        run_step(run.core)
    said = run.said(2) + run.said(3)
    short = "r1 preempted: r0 needs 1 block, free_block_queue holds 0"
    assert f"{short}, so the last of the running queue gives way (fcfs)" in said
    assert "r1 stays in waiting: a step that preempts admits nobody" in said


def test_blocks_whose_content_is_evicted(path: Path) -> None:
    run = Run(path, num_blocks=17)
    run.add("a", 16, max_tokens=1)
    run_step(run.core)
    for number, size in enumerate((52, 62)):
        run.add(f"b{number}", size, first=100 * (number + 1), max_tokens=1)
        run_step(run.core)
    head = "from the head of free_block_queue"
    some = f"r1 gets 13 blocks {head}: 5 6 7 8 9 10 … (13); what block 4 had cached is evicted"
    every = f"r2 gets 16 blocks {head}: 3 2 1 4 16 15 … (16), whose cached content is evicted"
    assert some in run.said(2)
    assert every in run.said(3)


def test_ends_and_failures(path: Path) -> None:
    run = Run(path)
    run.add("a", 4, stop_token_ids=(9,), ignore_eos=True)
    run.add("b", 4, first=40)
    run_step(run.core, token=9)
    run.core.abort(["b"], "client")
    run.add("c", 4, first=60)
    plan = run.core.schedule()
    run.core.update(plan.step, ForwardFailure(step=plan.step, why="out of memory"))
    assert "r0 ends: it sampled its stop token 9" in run.said(1)
    assert "r1 aborted: client" in run.said(1)
    assert "the forward pass failed, and its requests end: out of memory" in run.said(2)
    assert "r2 ends with an error: out of memory" in run.said(2)


class Elsewhere:
    """A connector that has some tokens of every request, and sends on whatever ends."""

    def __init__(self, num_tokens: int, *, load_async: bool) -> None:
        self._answer = num_tokens, load_async

    def get_num_new_matched_tokens(
        self, serial: int, token_ids: list[int], num_computed_tokens: int
    ) -> tuple[int, bool]:
        return self._answer

    def update_state_after_alloc(self, serial: int, block_ids: tuple[list[int], ...], num_tokens: int) -> None: ...

    def build_connector_meta(self, serials: list[int]) -> None: ...

    def request_finished(self, serial: int, block_ids: tuple[list[int], ...]) -> bool:
        return True


def test_kv_that_is_loaded_in_the_background_and_sent_on(path: Path) -> None:
    run = Run(path, Elsewhere(8, load_async=True))
    run.add("a", 10, max_tokens=1)
    run.add("b", 12, first=30, max_tokens=9)
    run_step(run.core)
    run_step(run.core)
    run.core.kv_done(finished_receiving=[0])
    run_step(run.core)
    run.core.kv_done(finished_sending=[0])
    said = run.said(1, details=True)
    assert "r0 another engine has KV of 8 tokens more: loaded in the background" in said
    assert "r0 waits for KV that another engine has computed" in said
    assert run.said(2) == ["r0 skipped: its KV is still on its way (so is that of 1 other)"]
    assert run.said(3) == [
        "r0 the KV it waited for is here, and counts as computed",
        "r0 2 tokens: the rest of its prompt, 8 came from another engine",
        "r1 skipped: its KV is still on its way",
        "r0 its blocks stay out of the pool: they are still being sent",
        "r0 ends: it has its 1 token, max_tokens",
        "r0 gives up 3 blocks: the connector is done with them",
    ]


def test_kv_that_is_loaded_within_the_step(path: Path) -> None:
    run = Run(path, Elsewhere(8, load_async=False))
    run.add("a", 10)
    run_step(run.core)
    assert "r0 another engine has KV of 8 tokens more: loaded within this step" in run.said(1, details=True)
    assert run.said(1) == ["r0 2 tokens: the rest of its prompt, 8 came from another engine"]


def test_blocks_of_those_who_wait_are_taken_when_nobody_runs(path: Path) -> None:
    run = Run(path, Elsewhere(30, load_async=True), num_blocks=17)
    run.add("a", 31, grammar=GrammarSpec(kind="regex", text="[a-z]+"))
    run.add("b", 31, first=110)
    run.add("c", 31, first=210)
    run_step(run.core)
    run.core.kv_done(finished_receiving=[1, 2])
    run.core.grammar_ready("a")
    run_step(run.core)
    assert "r2 gives up 8 blocks while it waits: nothing else runs, and r0 needs blocks" in run.said(2)


def test_a_grammar_that_is_waited_for(path: Path) -> None:
    run = Run(path)
    for name in "abc":
        run.add(name, 4, grammar=GrammarSpec(kind="regex", text="[a-z]+"))
    run_step(run.core)
    run.core.grammar_ready("a")
    run_step(run.core)
    compiled = [f"{name} its grammar (regex) is compiled: it waits until that is done" for name in ("r0", "r1", "r2")]
    assert run.said(1) == [*compiled, "r0 skipped: its grammar is not ready (nor are those of 2 others)"]
    assert run.said(2)[:2] == ["r0 its grammar is ready", "r0 4 tokens: its whole prompt"]


def test_every_decision_of_a_crowd_has_a_reason_in_order(path: Path) -> None:
    timeline = Timeline(record_crowd(path, seed=1, num_requests=60))
    told: list[Reason] = []
    for number in timeline.steps:
        reasons = explain(timeline.step(number))
        assert [reason.seq for reason in reasons] == sorted(reason.seq for reason in reasons)
        told += reasons
    assert {reason.event_type for reason in told} >= {
        "schedule.request", "schedule.skipped", "schedule.preempted", "kv.lookup", "kv.touched", "kv.allocated",
        "kv.cached", "kv.uncached", "kv.freed", "update.request", "executor.failed", "request.finished",
    }  # fmt: skip
    for reason in told:
        assert reason.sentence == reason.sentence.strip(" .:;")
        assert "None" not in reason.sentence


def test_every_type_of_event_is_told_or_is_no_decision() -> None:
    assert TELLERS.keys().isdisjoint(NO_DECISION)
    assert TELLERS.keys() | NO_DECISION.keys() == set(ev.EVENT_TYPES.values())
    decisions = {kind for kind in ev.EVENT_TYPES.values() if kind.kind is ev.DECISION}
    assert decisions - TELLERS.keys() == {ev.StepStarted}


def test_what_is_decided_between_two_steps_is_told_with_the_later_one(path: Path) -> None:
    run = Run(path)
    run.add("a", 4, max_tokens=1)
    run_step(run.core)
    run.core.reset_prefix_cache()
    limits = run.core.scheduler.config
    run.core.reconfigure(msgspec.structs.replace(limits, max_num_batched_tokens=3, max_num_seqs=1))
    run.add("b", 5, first=40)
    run_step(run.core)
    run.core.reset_prefix_cache()
    run.core.abort(["b"], "client")
    run_step(run.core)
    assert run.said(2) == [
        "every cached prefix is forgotten",
        "the limits of a step are now 3 tokens (max_num_batched_tokens) and 1 request (max_num_seqs)",
        "r1 3 of 5 tokens: the budget is 3",
    ]
    assert run.said(3) == ["the cache is not reset: 1 block in use", "r1 aborted: client"]
    assert [reason.phase for reason in explain(run.step(2))][:3] == ["before", "before", "planned"]


def test_the_plan_as_a_whole(path: Path) -> None:
    run = Run(path, max_num_batched_tokens=8)
    run.add("a", 6)
    run.add("b", 6, first=40)
    run_step(run.core)
    run_step(run.core)
    assert "the plan is complete: 8 tokens for 2 requests; the budget is spent" in run.said(1, details=True)
    assert "the plan is complete: 5 tokens for 2 requests; 3 of the budget are left" in run.said(2, details=True)


def test_drafts_from_proposal_to_verdict() -> None:
    view = shipped("spec-draft").step(4)
    said = [f"{r.name} {r.sentence}" for r in explain(view)]
    verdicts = [event for event in view.events if isinstance(event, ev.SpecVerdict)]
    assert verdicts
    for event in verdicts:
        told = f"r{event.request} {event.num_accepted} of {len(event.draft_token_ids)} drafts accepted"
        assert any(each.startswith(told) for each in said)
    assert any("the draft model proposes “" in each for each in said)


def test_drafts_that_are_cut_rejected_or_not_asked_for(path: Path) -> None:
    speculative = {"method": "ngram", "num_speculative_tokens": 3, "disable_by_batch_size": 3}
    limits: dict[str, Any] = {"max_num_batched_tokens": 8, "speculative_config": speculative}
    timeline = Timeline(record_crowd(path, seed=5, num_requests=60, **limits))
    told = [reason for number in timeline.steps for reason in explain(timeline.step(number))]
    sentences = [reason.sentence for reason in told]
    assert any("left out" in each for each in sentences)
    assert any(each.endswith("run, more than disable_by_batch_size") for each in sentences)
    assert any("is rejected for “" in each for each in sentences)
    assert any("comes free behind them" in each for each in sentences)
    rejected = [reason for reason in told if reason.event_type == "update.request" and "rejected" in reason.sentence]
    assert rejected
    assert all(reason.detail for reason in rejected if "cut" not in reason.sentence), "the verdict has told it"


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_a_sentence_and_points_at_the_code_that_decides(rule: str) -> None:
    statement = RULES[rule].statement
    assert statement.endswith(".")
    assert len(statement) <= 120
    place = RULES[rule].place
    line = (ROOT / place.path).read_text().splitlines()[place.line - 1]
    assert f"def {place.symbol.split('.')[-1]}(" in line


def test_a_place_that_is_gone_is_named() -> None:
    with pytest.raises(LookupError, match=r"defines no Scheduler\.guess"):
        _ = Place("engine/core/scheduler/scheduler.py", "Scheduler.guess").line


def test_no_two_rules_share_a_function() -> None:
    assert len({rule.place for rule in RULES.values()}) == len(RULES)
