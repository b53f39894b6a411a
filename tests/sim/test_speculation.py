"""Traces of speculation: they replay, verdicts included, and one wrong fact in them is noticed."""

from __future__ import annotations

import msgspec
import pytest

from engine.metrics import MetricsCollector
from engine.speculation import num_accepted
from engine.trace import events as ev
from engine.trace.file import Trace
from sim.invariants import check_trace
from sim.replay import replay
from tests.core.driver import record_crowd
from tests.sim.wrong import Wrong, assert_noticed, is_, plus, put

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    path = tmp_path_factory.mktemp("trace") / "drafts.jsonl"
    return record_crowd(path, seed=1, num_requests=40, speculative_config=NGRAM)


WRONG = {
    "accepted by luck": Wrong("verdicts on drafts", ev.SpecVerdict, plus("num_accepted")),
    "other drafts": Wrong("verdicts on drafts", ev.SpecVerdict, put(draft_token_ids=[1])),
    "bonus for a rejection": Wrong(
        "verdicts on drafts", ev.SpecVerdict, put(token_kind="bonus"), is_("token_kind", "recovered")
    ),
    "another token": Wrong("verdicts on drafts", ev.SpecVerdict, plus("token_id")),
    "no word of them": Wrong("verdicts on drafts", ev.SpecProbs, None, shows_at=ev.SpecVerdict),
    "one draft left out": Wrong("verdicts on drafts", ev.SpecProbs, lambda e: {"uniforms": e.uniforms[1:]}),
    "worse luck": Wrong(
        "verdicts on drafts",
        ev.SpecProbs,
        lambda e: {"target_probs": [0.0] * len(e.uniforms)},
        lambda e, s: e.target_probs[0] > 0.0,
        shows_at=ev.SpecVerdict,
    ),
    "other proposals": Wrong(
        "proposed drafts", ev.SpecProposed, lambda e: {"draft_token_ids": [*e.draft_token_ids, 1]}
    ),
    "proposed in a pause": Wrong(
        "proposed drafts", ev.SpecPaused, lambda e: {"requests": list(range(40))}, shows_at=ev.StepOutput
    ),
    "proposed out of nothing": Wrong(
        "proposed drafts",
        ev.StepOutput,
        lambda e: {"sampled_token_ids": [[] for _ in e.requests]},
        lambda e, s: any(e.draft_token_ids or []),
    ),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_one_wrong_fact_is_noticed(trace: Trace, wrong: Wrong) -> None:
    assert check_trace(trace) == []
    assert_noticed(trace, wrong)


def test_a_replay_regenerates_the_verdicts(trace: Trace) -> None:
    report = replay(trace)
    verdicts = [event for event in trace.events if isinstance(event, ev.SpecVerdict)]
    assert {verdict.token_kind for verdict in verdicts} == {"recovered", "bonus"}
    assert (report.divergence, report.num_recomputed, report.num_trusted) == (None, len(verdicts), 0)


@pytest.mark.parametrize("field", ["num_accepted", "token_id"])
def test_a_replay_finds_a_verdict_that_does_not_follow(trace: Trace, field: str) -> None:
    events = list(trace.events)
    place = next(at for at, event in enumerate(events) if isinstance(event, ev.SpecVerdict))
    events[place] = msgspec.structs.replace(events[place], **{field: 99})
    divergence = replay(Trace(trace.header, events)).divergence
    assert divergence is not None
    assert [difference.field for difference in divergence.differences] == [field]


def test_the_verdict_is_that_of_float32() -> None:
    third = 0.3333333432674408  # as float32 has it
    # Exactly, the product lies above the target's probability; as a float32 number it is no longer.
    product = 0.7000000476837158 * third
    assert product > 0.23333334922790527
    assert num_accepted([0.23333336412906647], [third], [0.7000000476837158]) == 1
    assert num_accepted([0.23333334922790527], [third], [0.7000000476837158]) == 0
    assert num_accepted([0.5, 0.0, 1.0], [1.0, 1.0, 1.0], [0.25, 0.25, 0.25]) == 1


def test_metrics_count_acceptance_per_position(trace: Trace) -> None:
    drafted, accepted = [0] * 3, [0] * 3
    applied = {
        (event.step, event.request)
        for event in trace.events
        if isinstance(event, ev.UpdateRequest) and event.dropped is None
    }
    for event in trace.events:
        if isinstance(event, ev.SpecVerdict) and (event.step, event.request) in applied:
            for place in range(len(event.draft_token_ids)):
                drafted[place] += 1
                accepted[place] += place < event.num_accepted
    metrics = MetricsCollector.of_events(trace.header.kv_cache, trace.events)
    assert (metrics.drafted, metrics.accepted) == (tuple(drafted), tuple(accepted))
    summary = metrics.summarise()
    assert (summary.num_draft_tokens, summary.num_accepted_tokens) == (sum(drafted), sum(accepted))
    assert summary.mean_acceptance_length == pytest.approx(1 + sum(accepted) / drafted[0])


def test_the_proposals_of_a_crowd_are_told(trace: Trace) -> None:
    proposed = [event for event in trace.events if isinstance(event, ev.SpecProposed)]
    assert {len(event.draft_token_ids) for event in proposed} == {1, 2, 3}
    assert {event.method for event in proposed} == {"ngram"}
