"""Greedy output with drafts is the output without any, token for token, whatever else a request or a batch may be.

Each test asserts that drafts were accepted, and others rejected: without that, it would show nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from engine.guided_decoding import GuidedDecodingParams
from engine.llm import LLM
from engine.metrics import MetricsCollector
from engine.outputs import RequestOutput
from engine.sample.logits_processors import RequestLogitsProcessor
from engine.sampling_params import SamplingParams
from engine.trace import events as ev
from engine.trace.file import Trace, read_trace
from sim.invariants import check_trace
from sim.replay import replay
from tests.spec_decode.prompts import PROMPTS

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
LAST_MATCH = {**NGRAM, "prompt_lookup_match": "last", "num_speculative_tokens": 5}
DRAFT_MODEL = {"method": "draft_model", "model": "orrery-tiny-draft", "num_speculative_tokens": 3}
EARLY_EXIT = {"method": "draft_model", "model": "orrery-tiny", "num_draft_layers": 2, "num_speculative_tokens": 2}
EAGLE = {"method": "eagle", "num_speculative_tokens": 3}
MEDUSA = {"method": "medusa", "model": "orrery-tiny-medusa", "num_speculative_tokens": 3}
SURE = {"num_speculative_tokens": 4, "draft_confidence_threshold": 0.7}
METHODS = {
    "n-gram": NGRAM,
    "last match": LAST_MATCH,
    "draft model": DRAFT_MODEL,
    "early exit": EARLY_EXIT,
    "eagle": EAGLE,
    "medusa": MEDUSA,
    "draft model, where sure": DRAFT_MODEL | SURE,
    "eagle, where sure": EAGLE | SURE,
    "medusa, where sure": MEDUSA | SURE,
}
KINDS = {name: METHODS[name] for name in ("n-gram", "draft model", "eagle", "medusa")}
SUN_OR_MOON = GuidedDecodingParams(regex="(the moon |the sun ){2,12}end")


@pytest.fixture(autouse=True)
def nobody_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested here is verdicts, so requests go on drafting even if few are good."""
    monkeypatch.setattr("engine.core.scheduler.drafting.PATIENCE", 1_000_000)


class Run(NamedTuple):
    outputs: list[RequestOutput]
    trace: Trace

    @property
    def token_ids(self) -> list[tuple[int, ...]]:
        return [tuple(each.outputs[0].token_ids) for each in self.outputs]

    def of(self, kind: type[ev.Event]) -> list[Any]:
        return [event for event in self.trace.events if isinstance(event, kind)]

    def require_verdicts(self) -> None:
        """Some drafts were accepted and some were not, and the trace is sound."""
        metrics = MetricsCollector.of_events(self.trace.header.kv_cache, self.trace.events)
        assert 0 < sum(metrics.accepted) < sum(metrics.drafted)
        assert check_trace(self.trace) == []
        report = replay(self.trace)
        assert report.divergence is None
        assert report.num_recomputed == len(self.of(ev.SpecVerdict)) > 0


def run(
    path: Path,
    prompts: Sequence[Any],
    params: SamplingParams | list[SamplingParams],
    speculative_config: dict[str, Any] | None,
    model: str = "orrery-tiny",
    **engine_args: Any,
) -> Run:
    file = path / f"{'plain' if speculative_config is None else 'drafts'}.jsonl"
    arguments = {"max_model_len": 256, "max_num_seqs": 16, "trace_level": "full", **engine_args}
    llm = LLM(model, trace=file, speculative_config=speculative_config, **arguments)
    with llm.llm_engine:
        outputs = llm.generate(list(prompts), params)
    return Run(outputs, read_trace(file))


@pytest.mark.parametrize("config", METHODS.values(), ids=METHODS)
def test_fifty_prompts(tmp_path: Path, config: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0, max_tokens=24)
    plain, drafts = (run(tmp_path, PROMPTS, params, each) for each in (None, config))
    assert drafts.token_ids == plain.token_ids
    drafts.require_verdicts()
    assert len(drafts.of(ev.StepScheduled)) < len(plain.of(ev.StepScheduled))


@pytest.mark.parametrize(("config", "least"), [(EAGLE, 0.75), (MEDUSA, 0.6)], ids=["eagle", "medusa"])
def test_trained_heads_are_right_most_of_the_time(tmp_path: Path, config: dict[str, Any], least: float) -> None:
    """Behind a state or a token that is off by one place they would hardly ever be."""
    drafts = run(tmp_path, PROMPTS[:20], SamplingParams(temperature=0, max_tokens=40), config)
    metrics = MetricsCollector.of_events(drafts.trace.header.kv_cache, drafts.trace.events)
    assert metrics.accepted[0] > least * metrics.drafted[0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["draft model", "eagle", "medusa"])
def test_a_drafter_that_is_not_sure_stops(tmp_path: Path, name: str, temperature: float) -> None:
    """Every request gets its first draft. The fewer follow it, the surer the drafter has to be."""
    params = [SamplingParams(temperature=temperature, max_tokens=24, seed=n) for n in range(12)]
    lengths = []
    for threshold in (0.0, 0.7, 1.0):
        config = {**KINDS[name], "num_speculative_tokens": 4, "draft_confidence_threshold": threshold}
        drafts = run(tmp_path, PROMPTS[:12], params, config)
        drafts.require_verdicts()
        lengths.append([len(event.draft_token_ids) for event in drafts.of(ev.SpecProposed)])
    everything, some, least = (sum(each) / len(each) for each in lengths)
    assert everything > some > least
    assert set(lengths[1]) >= {1, 2, 3}, "behind each of them a drafter may stop"
    assert lengths[2].count(1) > 0.7 * len(lengths[2])


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_in_a_small_pool_with_chunks_and_shared_prefixes(tmp_path: Path, config: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0, max_tokens=40)
    tight: dict[str, Any] = {
        "num_gpu_blocks_override": 40,
        "block_size": 4,
        "max_num_batched_tokens": 24,
        "max_model_len": 128,
    }
    prompts = [text for text in PROMPTS if len(text) < 90][:12] * 2
    plain, drafts = (run(tmp_path, prompts, params, each, **tight) for each in (None, config))
    assert drafts.token_ids == plain.token_ids
    drafts.require_verdicts()
    assert drafts.of(ev.SchedulePreempted)
    assert any(lookup.num_hit_tokens for lookup in drafts.of(ev.KVLookup))
    assert any(row.truncated_by == "token_budget" for row in drafts.of(ev.ScheduleRequest))


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(
    "params",
    [
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
        {"min_tokens": 25, "bad_words": ["the", " moon"], "logit_bias": {5: 3.0}},
        {"stop": ["moon", ". The"], "ignore_eos": True},
        {"guided_decoding": SUN_OR_MOON},
        {"guided_decoding": GuidedDecodingParams(choice=["one two three four five six", "seven"])},
        {"min_tokens": 20, "guided_decoding": SUN_OR_MOON},
    ],
    ids="-".join,
)
def test_with_everything_that_looks_at_the_tokens_before(
    tmp_path: Path, config: dict[str, Any], params: dict[str, Any]
) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=32, **params)
    prompts = PROMPTS[10:50:2]
    plain, drafts = (run(tmp_path, prompts, sampling, each) for each in (None, config))
    assert drafts.token_ids == plain.token_ids
    assert [each.outputs[0].text for each in drafts.outputs] == [each.outputs[0].text for each in plain.outputs]
    reasons = [[each.outputs[0].finish_reason for each in run_.outputs] for run_ in (plain, drafts)]
    assert reasons[0] == reasons[1]
    assert drafts.of(ev.SpecVerdict)


def test_log_probabilities_are_those_of_plain_decoding(tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=24, logprobs=3, prompt_logprobs=1)
    plain, drafts = (run(tmp_path, PROMPTS[20:30], params, each) for each in (None, NGRAM))
    drafts.require_verdicts()
    for with_, without in zip(drafts.outputs, plain.outputs, strict=True):
        assert with_.outputs[0].logprobs == without.outputs[0].logprobs
        assert with_.prompt_logprobs == without.prompt_logprobs


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_drafts_are_cut_to_what_is_left(tmp_path: Path, config: dict[str, Any]) -> None:
    prompts = PROMPTS[30:50]
    params = [SamplingParams(temperature=0, max_tokens=1 + number % 7, ignore_eos=True) for number in range(20)]
    plain, drafts = (run(tmp_path, prompts, params, each) for each in (None, config))
    assert drafts.token_ids == plain.token_ids
    assert [len(token_ids) for token_ids in drafts.token_ids] == [each.max_tokens for each in params]
    assert all(event.num_cut == 0 for event in drafts.of(ev.UpdateRequest))
    num_output = dict.fromkeys(range(20), 0)
    for event in drafts.trace.events:
        if isinstance(event, ev.StepOutput):
            for serial, token_ids in zip(event.requests, event.sampled_token_ids, strict=True):
                num_output[serial] += len(token_ids)
        if isinstance(event, ev.SpecProposed):
            left = (params[event.request].max_tokens or 0) - num_output[event.request]
            assert len(event.draft_token_ids) < left
    assert drafts.of(ev.SpecProposed)


class NothingAfter:
    """A custom processor that hides every token once so many have been put out."""

    def validate_params(self, sampling_params: SamplingParams) -> None:
        """Any will do."""

    def new_req_logits_processor(self, sampling_params: SamplingParams) -> RequestLogitsProcessor:
        return self._hide

    @staticmethod
    def _hide(prompt_token_ids: list[int], output_token_ids: list[int], logits: Tensor) -> Tensor:
        return torch.full_like(logits, -math.inf) if len(output_token_ids) >= len(prompt_token_ids) else logits


def test_a_row_that_cannot_be_sampled_ends_its_request_where_it_would_have_ended(tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    plain, drafts = (
        run(tmp_path, PROMPTS[20:50], params, each, logits_processors=[NothingAfter()]) for each in (None, NGRAM)
    )
    assert drafts.token_ids == plain.token_ids
    assert [each.error for each in drafts.outputs] == [each.error for each in plain.outputs]
    assert {each.error for each in drafts.outputs} >= {"No token may be sampled: every one is masked."}
    drafts.require_verdicts()
    assert any(verdict.token_id is None for verdict in drafts.of(ev.SpecVerdict))


def test_near_max_model_len(tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    plain, drafts = (run(tmp_path, ["a" * 12, "the sun and " * 3], params, c, max_model_len=40) for c in (None, NGRAM))
    assert drafts.token_ids == plain.token_ids
    drafts.require_verdicts()
    assert {len(each.prompt_token_ids) + len(each.outputs[0].token_ids) for each in drafts.outputs} == {40}


def test_prompts_of_one_token_and_prompts_that_match_nothing(tmp_path: Path) -> None:
    prompts = [{"prompt_token_ids": [1]}, {"prompt_token_ids": [5, 6, 7, 8, 9]}]
    params = SamplingParams(temperature=0, max_tokens=3)
    plain, drafts = (run(tmp_path, prompts, params, each) for each in (None, NGRAM))
    assert drafts.token_ids == plain.token_ids
    first = drafts.of(ev.StepOutput)[0]
    assert first.draft_token_ids == [[], []]


def test_rejected_drafts_are_never_found_in_the_prefix_cache(tmp_path: Path) -> None:
    """The same requests again, on blocks that their first run has filled, drafts and all."""
    params = SamplingParams(temperature=0, max_tokens=40)
    prompts = PROMPTS[20:40]
    texts: list[list[list[int]]] = []
    for config in (None, NGRAM, DRAFT_MODEL):
        file = tmp_path / "again.jsonl"
        llm = LLM("orrery-tiny", speculative_config=config, block_size=4, max_model_len=256, trace=file)
        with llm.llm_engine:
            first = llm.generate(prompts, params)
            begun: Any = [
                {"prompt_token_ids": [*each.prompt_token_ids, *each.outputs[0].token_ids[:20]]} for each in first
            ]
            rest = llm.generate(begun, SamplingParams(temperature=0, max_tokens=20))
        texts.append([[*a.outputs[0].token_ids, *b.outputs[0].token_ids] for a, b in zip(first, rest, strict=True)])
        trace = read_trace(file)
        assert check_trace(trace) == []
        assert any(event.num_hit_tokens > 40 for event in trace.events if isinstance(event, ev.KVLookup))
    assert texts[0] == texts[1] == texts[2]


def test_a_seeded_request_repeats_itself(tmp_path: Path) -> None:
    params = [
        SamplingParams(temperature=0.9, top_k=30, top_p=0.95, min_p=0.01, seed=n, max_tokens=24) for n in range(10)
    ]
    for config in (NGRAM, DRAFT_MODEL):
        first, second = (run(tmp_path, PROMPTS[20:30], params, config) for _ in range(2))
        assert first.token_ids == second.token_ids
        first.require_verdicts()


# Medusa's heads do not see each other's drafts: hardly any of theirs follow this grammar, which they never saw.
@pytest.mark.parametrize("config", [NGRAM, DRAFT_MODEL, EAGLE], ids=["n-gram", "draft model", "eagle"])
def test_sampled_output_keeps_to_its_grammar(tmp_path: Path, config: dict[str, Any]) -> None:
    params = [
        SamplingParams(temperature=1.0, seed=seed, max_tokens=48, guided_decoding=SUN_OR_MOON) for seed in range(20)
    ]
    drafts = run(tmp_path, PROMPTS[20:40], params, config)
    drafts.require_verdicts()
    for each in drafts.outputs:
        assert each.error is None
        words = each.outputs[0].text.split()
        assert set(words) <= {"the", "sun", "moon", "end"} or each.outputs[0].finish_reason == "length"
    assert any(each.outputs[0].finish_reason == "stop" for each in drafts.outputs)


@pytest.mark.real_model
@pytest.mark.parametrize(
    "config",
    [
        NGRAM,
        {"method": "draft_model", "model": "smollm2-135m", "num_draft_layers": 12, "num_speculative_tokens": 2},
    ],
    ids=["n-gram", "early exit"],
)
def test_the_real_model(smollm2_path: Path, tmp_path: Path, config: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0, max_tokens=10)
    prompts = PROMPTS[20:40:5]
    plain, drafts = (
        run(tmp_path, prompts, params, each, model=str(smollm2_path), trace_level="control") for each in (None, config)
    )
    assert drafts.token_ids == plain.token_ids
    assert drafts.of(ev.SpecVerdict)
