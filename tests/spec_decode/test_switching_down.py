"""Speculation switches itself down where it does not pay, says so, and comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.core.messages import EngineCoreRequest
from engine.core.request import Request
from engine.core.scheduler.drafting import FIRST_PAUSE, LONGEST_PAUSE, PATIENCE, note_verdict
from engine.llm import LLM
from engine.sampling_params import SamplingParams
from engine.trace import events as ev
from engine.trace.file import Trace, read_trace
from sim.invariants import check_trace
from sim.replay import replay

METHODS: dict[str, dict[str, Any]] = {
    "n-gram": {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3},
    "draft model": {"method": "draft_model", "model": "orrery-tiny-draft"},
    "eagle": {"method": "eagle"},
    "medusa": {"method": "medusa"},
}


def generate(
    file: Path, prompts: list[str], params: list[SamplingParams], speculative_config: dict[str, Any] | None
) -> tuple[list[list[int]], Trace]:
    llm = LLM("orrery-tiny", max_model_len=256, trace=file, speculative_config=speculative_config)
    with llm.llm_engine:
        outputs = llm.generate(prompts, params)
    return [list(each.outputs[0].token_ids) for each in outputs], read_trace(file)


def request() -> Request:
    asked = EngineCoreRequest(request_id="a", prompt_token_ids=(1,), sampling_params=SamplingParams(max_tokens=8))
    return Request(0, asked, 16)


@pytest.mark.parametrize("config", METHODS.values(), ids=METHODS)
def test_in_a_large_batch_nobody_is_asked_until_it_is_small_again(tmp_path: Path, config: dict[str, Any]) -> None:
    prompts = [f"The crank turns the gears, and the crank turns the {n}" for n in range(8)]
    params = [SamplingParams(temperature=0, ignore_eos=True, max_tokens=8 if n < 5 else 40) for n in range(8)]
    limited = {**config, "num_speculative_tokens": 3, "disable_by_batch_size": 3}
    plain, _ = generate(tmp_path / "plain.jsonl", prompts, params, None)
    drafts, trace = generate(tmp_path / "drafts.jsonl", prompts, params, limited)
    assert drafts == plain
    large = {event.step for event in trace.events if isinstance(event, ev.SpecPaused) and event.reason == "batch_size"}
    sizes = {event.step: len(event.requests) for event in trace.events if isinstance(event, ev.StepScheduled)}
    proposed = {event.step for event in trace.events if isinstance(event, ev.SpecProposed)}
    assert large == {step for step, size in sizes.items() if size > 3}
    assert large and proposed and not large & proposed
    assert check_trace(trace) == []
    assert replay(trace).divergence is None


def test_a_request_whose_drafts_are_rejected_pauses_and_tries_again(tmp_path: Path) -> None:
    """Of forty tokens in any order, the one that followed last time hardly ever follows again."""
    some = list(range(300, 340))
    params = [SamplingParams(temperature=4.0, seed=n, max_tokens=100, allowed_token_ids=some) for n in range(2)]
    config = {**METHODS["n-gram"], "num_speculative_tokens": 2}
    prompts = ["one two three"] * 2
    _, trace = generate(tmp_path / "drafts.jsonl", prompts, params, config)
    pauses = [event for event in trace.events if isinstance(event, ev.SpecPaused)]
    proposed = {(event.request, event.step) for event in trace.events if isinstance(event, ev.SpecProposed)}
    assert {pause.reason for pause in pauses} == {"rejected"}
    for pause in pauses:
        for serial, until in zip(pause.requests, pause.until_steps, strict=True):
            assert pause.step < until and (serial, pause.step) not in proposed
    first = pauses[0]
    assert any(step >= first.until_steps[0] for serial, step in proposed if serial == first.requests[0])
    assert check_trace(trace) == []
    assert replay(trace).divergence is None


def test_each_pause_is_twice_as_long_as_the_one_before_up_to_a_limit() -> None:
    paused, step, lengths = request(), 0, []
    for _ in range(PATIENCE + 5):
        step = max(step + 1, paused.drafts_from_step)
        note_verdict(paused, step, num_accepted=0)
        lengths.append(max(0, paused.drafts_from_step - step))
    assert lengths[: PATIENCE - 1] == [0] * (PATIENCE - 1)
    assert lengths[PATIENCE - 1 :] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE, *[LONGEST_PAUSE] * 3]


def test_one_accepted_draft_ends_it_and_drafts_on_their_way_do_not_prolong_it() -> None:
    paused = request()
    for step in range(PATIENCE):
        note_verdict(paused, step, num_accepted=0)
    until = paused.drafts_from_step
    assert until == PATIENCE - 1 + FIRST_PAUSE
    note_verdict(paused, PATIENCE, num_accepted=0)
    assert (paused.drafts_from_step, paused.num_fruitless_verifications) == (until, PATIENCE)
    note_verdict(paused, PATIENCE, num_accepted=1)
    assert (paused.drafts_from_step, paused.num_fruitless_verifications) == (0, 0)
