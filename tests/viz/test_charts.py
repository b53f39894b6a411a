"""The charts of a run say what the trace says: on the shipped traces, on a crowd, and on a long run."""

from __future__ import annotations

from itertools import chain

import msgspec
import pytest

from engine.trace import events as ev
from engine.trace.file import Trace
from sim.timeline import StepView, Timeline
from tests.core.driver import record_crowd
from tests.viz.conftest import shipped
from tests.viz.drawn import Drawn
from viz.figures.chunked_prefill import chunked_prefill
from viz.figures.engine_map import engine_map
from viz.figures.guided import allowed_tokens, guided, mask_words
from viz.figures.latency import latency, values_of
from viz.figures.parts import Selection
from viz.figures.roofline import roofline
from viz.figures.speculation import speculation
from viz.figures.statistics import statistics
from viz.gallery import GALLERY

NOBODY = Selection()
FIGURES = (chunked_prefill, engine_map, guided, latency, roofline, speculation, statistics)


@pytest.fixture(scope="module", params=["tiny", "guided", "speculative", "crowd", "long"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    names = {"tiny": "first-token", "guided": "json-schema", "speculative": "spec-draft"}
    if request.param in names:
        return shipped(names[request.param])
    path = tmp_path_factory.mktemp("trace") / "run.jsonl"
    timeline = Timeline(record_crowd(path, seed=3, num_requests=30 if request.param == "crowd" else 300))
    assert timeline.summary().num_preemptions > 0
    assert request.param == "crowd" or len(timeline.events) > 10_000
    return timeline


def some_steps(timeline: Timeline) -> list[StepView]:
    steps = timeline.steps
    return [timeline.step(number) for number in steps[:: -(-len(steps) // 12)]]


def events_of(view: StepView, kind: type[ev.Event]) -> list[ev.Event]:
    return [event for event in view.events if isinstance(event, kind)]


def test_every_figure_draws_every_situation_at_its_step() -> None:
    for situation in GALLERY:
        timeline = shipped(situation.name)
        for figure in FIGURES:
            assert Drawn(figure(timeline, timeline.step(situation.step), NOBODY)).text


def test_shares_of_a_step_are_its_plan(run: Timeline) -> None:
    for view in some_steps(run):
        drawn = Drawn(chunked_prefill(run, view, NOBODY))
        shares = {int(e["data-share"]): int(e["data-tokens"]) for e in drawn.all(data_step_of=view.step)}
        assert shares == {serial: row.num_scheduled_tokens for serial, row in view.plan.rows.items()}
        assert drawn.one(data_limit=None)["data-limit"] == str(view.plan.token_budget)
        assert drawn.numbers("data_now") == [view.step]


def test_lit_parts_are_those_that_worked(run: Timeline) -> None:
    for view in some_steps(run):
        drawn = Drawn(engine_map(run, view, NOBODY))
        lit = {part["data-part-name"] for part in drawn.all(data_active=None)}
        assert ("StructuredOutputManager" in lit) == bool(events_of(view, ev.GrammarBitmaskFilled))
        assert ("LLMEngine.add_request" in lit) == bool(view.arrivals)
        assert ("Sampler" in lit) == any(e.appended for e in view.events if isinstance(e, ev.UpdateRequest))
        assert ("Executor" in lit) == bool(view.plan.rows)
        assert len(lit) == len([part for part in drawn.elements if "lit-part" in part.classes])


def test_statistics_are_those_of_the_run(run: Timeline) -> None:
    by_step = {facts.step: facts for facts in run.series}
    for view in some_steps(run):
        drawn = Drawn(statistics(run, view, NOBODY))
        running = drawn.one(data_statistic="requests running")
        assert float(running["data-now"]) == by_step[view.step].num_running
        assert float(running["data-most"]) == max(facts.num_running for facts in run.series)
        used = drawn.one(data_statistic="KV cache in use")
        assert float(used["data-now"]) == pytest.approx(100 * by_step[view.step].kv_cache_usage, rel=1e-4)


def test_every_latency_is_counted_once(run: Timeline) -> None:
    requests = run.summary().metrics.requests
    drawn = Drawn(latency(run, run.step(run.steps[-1]), NOBODY))
    for name in ("ttft", "itl", "e2el"):
        measured = drawn.all(data_measure=name)
        assert [int(each["data-values"]) for each in measured] == [len(values_of(requests, name))]
    assert sum(drawn.numbers("data_bin")) == sum(len(values_of(requests, name)) for name in ("ttft", "itl", "e2el"))
    assert drawn.numbers("data_tokens_drawn") == [run.summary().num_output_tokens]


@pytest.mark.parametrize("name", ["first-token", "spec-draft", "preemption"])
def test_each_executed_step_is_a_point(name: str) -> None:
    timeline = shipped(name)
    executed = {e.step for e in timeline.events if isinstance(e, ev.StepExecuted) and e.num_tokens}
    for view in some_steps(timeline):
        drawn = Drawn(roofline(timeline, view, NOBODY))
        assert set(drawn.numbers("data_point")) == executed
        assert [int(e["data-point"]) for e in drawn.all(data_current=None)] == [view.step]


@pytest.mark.parametrize(
    ("driver_name", "words"),
    [
        ("NVIDIA H200", "ceilings of: h200"),
        ("NVIDIA L4", "ceilings of: l4"),
        ("NVIDIA L40S", "What NVIDIA L40S can do at best is not known here"),
    ],
)
def test_ceilings_are_those_of_the_device_that_the_run_was_recorded_on(driver_name: str, words: str) -> None:
    recorded = shipped("fsm-choice").trace
    events = [
        msgspec.structs.replace(e, device_name=driver_name) if isinstance(e, ev.DeviceInitialized) else e
        for e in recorded.events
    ]
    timeline = Timeline(Trace(header=msgspec.structs.replace(recorded.header, device="cuda:0"), events=events))
    drawn = Drawn(roofline(timeline, timeline.step(1), NOBODY))
    assert words in drawn.text
    assert len(drawn.all(data_point=None)) == len([e for e in events if isinstance(e, ev.StepExecuted)])
    assert len(drawn.all(data_saturation=None)) == words.startswith("ceilings")


def test_a_roofline_needs_the_sizes_of_the_model() -> None:
    recorded = shipped("first-token").trace
    model = msgspec.structs.replace(recorded.header.model, intermediate_size=0)
    timeline = Timeline(
        Trace(header=msgspec.structs.replace(recorded.header, model=model), events=list(recorded.events))
    )
    assert "does not tell the sizes" in Drawn(roofline(timeline, timeline.step(1), NOBODY)).text


@pytest.mark.parametrize("name", ["fsm-choice", "json-schema"])
def test_lit_state_is_the_matchers(name: str) -> None:
    timeline, seen = shipped(name), 0
    for number in timeline.steps:
        view = timeline.step(number)
        drawn = Drawn(guided(timeline, view, Selection(request=0)))
        for event in view.events:
            if isinstance(event, ev.GrammarAdvanced):
                assert [int(e["data-state"]) for e in drawn.all(data_lit=None)] == [event.after[-1]]
                assert drawn.all(data_taken=None) or event.terminated
                seen += 1
            elif isinstance(event, ev.GrammarBitmaskFilled):
                words = mask_words(timeline, event.digests[0][0])
                assert words is not None
                assert drawn.numbers("data_num_allowed") == [event.num_allowed[0][0]]
                assert drawn.numbers("data_bit") == list(allowed_tokens(words))[: len(drawn.numbers("data_bit"))]
                assert view.logits is not None
                assert view.logits.sampled_token_ids[0] in set(allowed_tokens(words))
    assert seen > 5


@pytest.mark.parametrize("name", ["spec-ngram", "spec-draft"])
def test_bars_are_the_recorded_probabilities(name: str) -> None:
    timeline, kinds, accepted = shipped(name), set(), 0
    for number in timeline.steps:
        view = timeline.step(number)
        drawn = Drawn(speculation(timeline, view, NOBODY))
        verdicts = [e for e in view.events if isinstance(e, ev.SpecVerdict)]
        probs = {e.request: e for e in view.events if isinstance(e, ev.SpecProbs)}
        targets = [float(e["data-value"]) for e in drawn.all(data_who="model")]
        assert targets == list(chain.from_iterable(probs[v.request].target_probs for v in verdicts))
        assert drawn.numbers("data_draft") == list(chain.from_iterable(v.draft_token_ids for v in verdicts))
        assert len(drawn.all(data_said="accepted")) == sum(v.num_accepted for v in verdicts)
        assert [e["data-kind"] for e in drawn.all(data_kind=None)] == [v.token_kind for v in verdicts]
        kinds |= {v.token_kind for v in verdicts}
        accepted += sum(v.num_accepted for v in verdicts)
        hits = drawn.numbers("data_hits")
        assert hits == list(timeline.summary().metrics.accepted)
    assert accepted > 0
    assert "recovered" in kinds
    assert name == "spec-ngram" or "bonus" in kinds


def test_a_long_prompt_keeps_the_next_one_waiting() -> None:
    plan = shipped("head-of-line").step(4).plan
    assert plan.budget_left == 0
    assert [(skipped.request, skipped.reason) for skipped in plan.skipped] == [(2, "token_budget")]
