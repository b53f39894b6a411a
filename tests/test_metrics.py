"""Metrics: worked out by hand, equal to numpy's, and the same for a running engine and the trace it wrote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import LLM, LLMEngine, SamplingParams
from engine.core.engine_core import EngineCore
from engine.core.messages import ForwardFailure, ModelRunnerOutput
from engine.errors import ConfigError
from engine.metrics import MetricsCollector, MetricsSummary, RequestMetrics, RunMetrics, Tally
from engine.metrics.distribution import Distribution, percentile
from engine.trace import events as ev
from engine.trace.file import Trace, read_trace
from engine.trace.recorder import Recorder
from sim.timeline import Timeline
from tests.core.driver import core_of, header, make_core, record_crowd, request

MS = 1_000_000


class HandClock:
    """Runs a core without a model on a clock that is set by hand, in milliseconds."""

    def __init__(self, window: int | None = None, tally: Tally | None = None, **engine_args: Any) -> None:
        head = header(**engine_args)
        self.collector = MetricsCollector(head.kv_cache, window, tally)
        self.step = 0
        self.now = 0.0
        self.core: EngineCore = core_of(head, self)

    def emit(self, event: ev.Event) -> None:
        event.ts, event.step = round(self.now * MS), self.step
        self.collector.feed(event)

    def add(self, at: float, request_id: str, num_tokens: int, **params: Any) -> None:
        self.now = at
        self.core.add(request(request_id, list(range(10, 10 + num_tokens)), **params))

    def run(self, begin: float, end: float, *tokens: list[int]) -> None:
        """A step from `begin` to `end`; `tokens` are the new ones of each row."""
        self.now = begin
        plan = self.core.schedule()
        self.now = end
        serials = [row.serial for row in plan.rows]
        self.core.update(plan.step, ModelRunnerOutput(step=plan.step, serials=serials, sampled_token_ids=list(tokens)))

    @property
    def metrics(self) -> RunMetrics:
        return self.collector.metrics()

    def request(self, serial: int) -> RequestMetrics:
        found = self.collector.request(serial)
        assert found is not None
        return found


# --- by hand ----------------------------------------------------------------------------------------------------


def test_the_times_of_a_request() -> None:
    clock = HandClock()
    clock.add(5, "a", 6, max_tokens=3)
    clock.run(15, 35, [9])
    clock.run(36, 45, [9])
    clock.run(46, 65, [9])
    a = clock.request(0)
    assert a.queue_ns == 10 * MS
    assert a.prefill_ns == 20 * MS
    assert a.ttft_ns == 30 * MS
    assert a.itls_ns == [10 * MS, 20 * MS]
    assert a.tpot_ns == 15 * MS
    assert a.decode_ns == 30 * MS
    assert a.e2el_ns == 60 * MS
    assert a.finished_ns == 65 * MS
    assert (a.finish_reason, a.num_prompt_tokens, a.num_output_tokens) == ("length", 6, 3)


def test_what_has_not_happened_has_no_time() -> None:
    clock = HandClock()
    clock.add(0, "a", 6)
    a = clock.request(0)
    assert (a.queue_ns, a.prefill_ns, a.ttft_ns, a.tpot_ns, a.e2el_ns, a.finished_ns) == (None,) * 6
    assert a.itls_ns == []
    summary = clock.metrics.summarise(goodput={"ttft": 1})
    assert (summary.completed, summary.duration, summary.request_throughput, summary.request_goodput) == (
        0,
        0,
        None,
        None,
    )
    assert summary.latencies_ms == {}
    assert summary.to_json()["mean_ttft_ms"] is summary.to_json()["p99_e2el_ms"] is None


def test_a_single_token_has_no_itl_and_no_tpot() -> None:
    clock = HandClock()
    clock.add(0, "a", 6, max_tokens=1)
    clock.run(1, 21, [9])
    a = clock.request(0)
    assert (a.itls_ns, a.tpot_ns) == ([], None)
    assert a.ttft_ns == a.e2el_ns == 21 * MS
    summary = clock.metrics.summarise(goodput={"tpot": 0})
    assert "itl" not in summary.latencies_ms and "tpot" not in summary.latencies_ms
    assert summary.request_goodput == summary.request_throughput == pytest.approx(1 / 0.021)


def test_tokens_that_come_together_share_an_itl_and_count_one_by_one_in_tpot() -> None:
    clock = HandClock(speculative_config={"method": "ngram", "num_speculative_tokens": 2})
    clock.add(0, "a", 6, max_tokens=4)
    clock.now = 10
    plan = clock.core.schedule()
    drafts = [[9, 9]]
    clock.core.update(
        plan.step, ModelRunnerOutput(step=1, serials=[0], sampled_token_ids=[[9]], draft_token_ids=drafts)
    )
    clock.run(11, 40, [9, 9, 9])
    a = clock.request(0)
    assert a.itls_ns == [30 * MS]
    assert a.num_output_tokens == 4
    assert a.tpot_ns == 10 * MS


def test_chunks_of_a_prompt_are_one_prefill() -> None:
    clock = HandClock(max_num_batched_tokens=4)
    clock.add(0, "a", 10, max_tokens=2)
    clock.run(5, 10, [])
    clock.run(10, 20, [])
    clock.run(20, 30, [9])
    clock.run(30, 37, [9])
    a = clock.request(0)
    assert (a.queue_ns, a.prefill_ns, a.ttft_ns, a.itls_ns) == (5 * MS, 25 * MS, 30 * MS, [7 * MS])
    assert [(i.prefill_tokens, i.decode_tokens, i.output_tokens) for i in clock.metrics.iterations] == [
        (4, 0, 0),
        (4, 0, 0),
        (2, 0, 1),
        (0, 1, 1),
    ]


def test_a_preempted_request_waits_between_two_tokens() -> None:
    # Sixteen usable blocks: eight each, and full with the second output token.
    clock = HandClock(num_blocks=17, block_size=4, enable_prefix_caching=False)
    clock.add(0, "a", 31, max_tokens=4)
    clock.add(0, "b", 31, max_tokens=3)
    clock.run(0, 10, [9], [9])
    clock.run(10, 20, [9], [9])
    clock.run(20, 30, [9])
    assert clock.metrics.iterations[-1].preemptions == 1
    clock.run(30, 40, [9])
    clock.run(40, 50, [9])
    b = clock.request(1)
    assert b.num_preemptions == 1
    assert b.itls_ns == [10 * MS, 30 * MS]
    assert b.first_scheduled_ns == 0
    assert clock.metrics.summarise().num_preemptions == 1


def test_iterations() -> None:
    clock = HandClock(num_blocks=21, block_size=4, max_num_seqs=2)
    clock.add(0, "a", 9, max_tokens=1)
    clock.run(1, 4, [9])
    for name in "bcd":
        clock.add(5, name, 9, max_tokens=2)
    clock.run(6, 9, [9], [9])
    first, second = clock.metrics.iterations
    assert (first.step, first.duration_ns) == (1, 3 * MS)
    assert (first.num_running, first.num_waiting, first.num_rows, first.finishes) == (0, 1, 1, 1)
    assert (first.blocks_in_use, first.usable_blocks, first.kv_cache_usage) == (3, 20, 0.15)
    assert (first.queried_tokens, first.hit_tokens) == (9, 0)
    # The prompts are alike: two blocks of the first one are found twice, and shared.
    assert (second.num_running, second.num_waiting, second.num_rows) == (0, 3, 2)
    assert (second.queried_tokens, second.hit_tokens, second.prefill_tokens) == (18, 16, 2)
    assert second.blocks_in_use == 2 + 1 + 1
    summary = clock.metrics.summarise()
    assert (summary.prefix_cache_queries, summary.prefix_cache_hits) == (27, 16)
    assert summary.mean_kv_cache_usage == pytest.approx((0.15 + 0.2) / 2)
    assert summary.max_kv_cache_usage == 0.2
    assert clock.request(1).num_cached_tokens == 8


def test_a_step_without_rows_and_a_failed_one() -> None:
    clock = HandClock()
    clock.now = 3
    clock.core.schedule()
    clock.add(4, "a", 6)
    clock.now = 5
    plan = clock.core.schedule()
    clock.now = 9
    clock.core.update(plan.step, ForwardFailure(step=plan.step, why="out of memory"))
    empty, failed = clock.metrics.iterations
    assert (empty.num_rows, empty.duration_ns) == (0, 0)
    assert (failed.duration_ns, failed.output_tokens, failed.finishes) == (4 * MS, 0, 1)
    assert clock.request(0).finish_reason == "error"
    assert clock.metrics.summarise().completed == 0


def test_the_summary_counts_completed_requests_only_and_bears_the_names_of_vllm() -> None:
    clock = HandClock()
    clock.add(0, "a", 6, max_tokens=2)
    clock.add(0, "b", 4, max_tokens=3)
    clock.add(0, "gone", 5, max_tokens=9)
    clock.run(0, 100, [9], [9], [9])
    clock.run(100, 150, [9], [9], [9])
    clock.now = 175
    clock.core.abort(["gone"])
    clock.run(180, 250, [9])
    assert clock.request(2).finish_reason == "abort"
    summary = clock.metrics.summarise(percentiles=(25, 99.9), goodput={"ttft": 100, "tpot": 55, "e2el": 1000})
    named = summary.to_json()
    assert named["duration"] == 0.25
    assert (named["completed"], named["total_input_tokens"], named["total_output_tokens"]) == (2, 10, 5)
    assert named["request_throughput"] == 8
    assert named["output_throughput"] == 20
    assert named["total_token_throughput"] == 60
    # The tokens of b after the first took (50 + 100) / 2 milliseconds each.
    assert named["request_goodput"] == 4
    assert (named["mean_ttft_ms"], named["median_ttft_ms"], named["std_ttft_ms"]) == (100, 100, 0)
    assert (named["mean_tpot_ms"], named["std_tpot_ms"], named["p25_tpot_ms"]) == (62.5, 12.5, 56.25)
    assert named["median_itl_ms"] == 50
    assert named["mean_e2el_ms"] == 200
    assert named["p99.9_e2el_ms"] == pytest.approx(249.9)
    for latency in ("ttft", "tpot", "itl", "e2el"):
        assert {f"{s}_{latency}_ms" for s in ("mean", "median", "std", "p25", "p99.9")} <= set(named)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"percentiles": (101,)}, "percentiles must lie between 0 and 100, got 101."),
        ({"goodput": {"itl": 5}}, "goodput takes objectives for ttft, tpot, e2el, got one for 'itl'."),
        ({"goodput": {"ttft": -1}}, "The goodput objective for ttft must be at least 0 milliseconds, got -1."),
        ({"goodput": {"ttft": float("nan")}}, "must be at least 0 milliseconds, got nan."),
    ],
)
def test_what_a_summary_cannot_be_asked(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        RunMetrics([], []).summarise(**asked)
    assert message in str(refused.value)


def test_a_window_keeps_the_last_ones() -> None:
    clock = HandClock(window=2)
    clock.add(0, "long", 3, max_tokens=9)
    for number in range(4):
        clock.add(number, f"short{number}", 3, max_tokens=1)
        clock.run(number, number + 1, [9], [9])
    metrics = clock.metrics
    assert [each.request_id for each in metrics.requests] == ["long", "short2", "short3"]
    assert [each.step for each in metrics.iterations] == [3, 4]
    assert clock.collector.request(1) is None


def test_a_tally_of_what_left_the_window_sums_up_as_if_all_were_kept() -> None:
    whole, flat = HandClock(), HandClock(window=2, tally=Tally())
    for clock in (whole, flat):
        clock.add(0, "long", 3, max_tokens=9)
        for number in range(6):
            clock.add(500 * number, f"short{number}", 3, max_tokens=1 + number % 2)
            clock.run(500 * number, 500 * number + 7, [9], [9], *([[9]] if number in (2, 4) else []))
        clock.now = 3100
        clock.core.abort(["long"])
    # Two that finished, and one that lives.
    assert len(flat.metrics.requests) == 3 < len(whole.metrics.requests)
    asked: dict[str, Any] = {"percentiles": (50, 90), "goodput": {"tpot": 100, "e2el": 400}}
    summary = whole.metrics.summarise(**asked)
    assert flat.collector.summarise(**asked) == summary
    assert (summary.completed, summary.failed) == (5, 1)
    assert summary.request_goodput is not None and summary.request_throughput is not None
    assert 0 < summary.request_goodput < summary.request_throughput


def test_the_best_second_and_the_fullest() -> None:
    clock = HandClock()
    clock.add(100, "a", 3, max_tokens=3)
    clock.add(200, "b", 3, max_tokens=2)
    clock.run(300, 900, [9], [9])
    clock.run(1000, 1100, [9], [9])
    clock.run(1200, 2100, [9])
    summary = clock.metrics.summarise()
    assert (summary.max_output_tokens_per_s, summary.max_concurrent_requests) == (2, 2)


# --- as numpy ---------------------------------------------------------------------------------------------------

values = st.lists(st.floats(0, 1e6), min_size=1, max_size=40)


@given(values, st.floats(0, 100))
def test_percentiles_are_those_of_numpy(numbers: list[float], percentage: float) -> None:
    assert percentile(sorted(numbers), percentage) == pytest.approx(np.percentile(numbers, percentage), abs=1e-9)


@given(values)
def test_distributions_are_those_of_numpy(numbers: list[float]) -> None:
    told = Distribution.of(numbers, (1, 99.9))
    assert told.count == len(numbers)
    for mine, numpy_s in (
        (told.mean, np.mean(numbers)),
        (told.median, np.median(numbers)),
        (told.std, np.std(numbers)),
        (told.percentiles[1], np.percentile(numbers, 1)),
        (told.percentiles[99.9], np.percentile(numbers, 99.9)),
    ):
        assert mine == pytest.approx(numpy_s, rel=1e-6, abs=1e-6)


# --- a crowd ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return record_crowd(tmp_path_factory.mktemp("crowd") / "crowd.jsonl", seed=5, num_requests=60)


def test_ttft_and_itls_add_up_to_e2el(crowd: Trace) -> None:
    metrics = MetricsCollector.of_events(crowd.header.kv_cache, crowd.events)
    assert {"stop", "length", "abort", "error"} <= {each.finish_reason for each in metrics.requests}
    assert any(each.num_preemptions and each.itls_ns for each in metrics.requests)
    for each in metrics.requests:
        if each.ttft_ns is None:
            assert each.itls_ns == [] and each.num_output_tokens == 0
            continue
        assert each.ttft_ns + sum(each.itls_ns) == each.e2el_ns
        assert each.queue_ns is not None and each.prefill_ns is not None and each.decode_ns is not None
        assert each.queue_ns + each.prefill_ns + each.decode_ns == each.e2el_ns
        assert min(each.queue_ns, each.prefill_ns, each.decode_ns, *each.itls_ns) >= 0


def test_counts_are_those_that_the_core_gave(crowd: Trace) -> None:
    metrics = MetricsCollector.of_events(crowd.header.kv_cache, crowd.events)
    requests = {each.serial: each for each in metrics.requests}
    ends = [event for event in crowd.events if isinstance(event, ev.RequestFinished)]
    assert len(ends) == len(requests) == 60
    for end in ends:
        told = requests[end.request]
        assert (told.finish_reason, told.finished_ns) == (end.finish_reason, end.ts)
        assert (told.num_prompt_tokens, told.num_output_tokens) == (end.num_prompt_tokens, end.num_output_tokens)
        assert (told.num_cached_tokens, told.num_preemptions) == (end.num_cached_tokens, end.num_preemptions)
    plans = {event.step: event for event in crowd.events if isinstance(event, ev.StepScheduled)}
    assert len(plans) == len(metrics.iterations)
    timeline = Timeline(crowd)
    for iteration in metrics.iterations:
        plan = plans[iteration.step]
        assert iteration.tokens == plan.total_num_scheduled_tokens
        assert iteration.num_rows == len(plan.requests)
        state = timeline.step(iteration.step).planned
        assert iteration.blocks_in_use == iteration.usable_blocks - state.pool.num_free
        assert iteration.duration_ns > 0


# --- a running engine -------------------------------------------------------------------------------------------

PROMPTS = [
    "The keeper of the lighthouse",
    "A clock is",
    "The keeper of the lighthouse was asleep when the ship came in.",
]
SMALL: dict[str, Any] = {
    "model": "orrery-tiny",
    "block_size": 4,
    "num_gpu_blocks_override": 26,
    "max_model_len": 96,
    "max_num_batched_tokens": 8,
}


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["synchronous", "asynchronous"])
def test_a_running_engine_and_its_trace_say_the_same(tmp_path: Path, async_scheduling: bool) -> None:
    path = tmp_path / "run.jsonl"
    llm = LLM(trace=path, disable_log_stats=False, async_scheduling=async_scheduling, **SMALL)
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    piece = outputs[0].outputs[0].text[20:24]
    outputs += llm.generate(PROMPTS[:1], SamplingParams(temperature=0.0, stop=[piece], max_tokens=40), use_tqdm=False)
    llm.llm_engine.add_request("gone", PROMPTS[1])
    llm.llm_engine.step()
    llm.llm_engine.abort_request("gone")
    live = llm.llm_engine.get_metrics()
    llm.llm_engine.close()
    trace = read_trace(path)
    assert MetricsCollector.of_events(trace.header.kv_cache, trace.events) == live
    assert Timeline(trace).summary().metrics == live

    assert [each.finish_reason for each in live.requests] == ["length", "length", "length", "stop", "abort"]
    assert sum(each.num_preemptions for each in live.requests) > 0
    assert sum(each.hit_tokens for each in live.iterations) > 0
    for output, measured in zip(outputs, live.requests, strict=False):
        assert output.metrics == measured
        assert output.metrics is not None and output.metrics.finished_ns is not None
        assert output.metrics.num_output_tokens == len(output.outputs[0].token_ids)
        assert output.metrics.num_cached_tokens == output.num_cached_tokens
        assert output.metrics.finish_reason == output.outputs[0].finish_reason


def test_metrics_need_no_trace_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    engine = LLMEngine.from_engine_args(disable_log_stats=False, **SMALL)
    engine.add_request("a", PROMPTS[0], SamplingParams(max_tokens=5, ignore_eos=True))
    (first,) = engine.step()
    assert first.metrics is not None and first.metrics.finished_ns is None
    early = engine.get_metrics()
    while engine.has_unfinished_requests():
        engine.step()
    summary: MetricsSummary = engine.get_metrics().summarise()
    engine.close()
    assert len(early.iterations) == 1, "metrics that were taken stay as they were"
    assert (summary.completed, summary.total_output_tokens) == (1, 5)
    assert summary.latencies_ms["itl"].count == 4
    assert summary.latencies_ms["ttft"].mean > 0
    assert list(tmp_path.iterdir()) == []


def test_metrics_are_off_unless_asked_for(tmp_path: Path) -> None:
    llm = LLM(trace=tmp_path / "run.jsonl", **SMALL)
    (output,) = llm.generate(PROMPTS[:1], SamplingParams(max_tokens=2), use_tqdm=False)
    assert output.metrics is None
    with pytest.raises(ConfigError, match="make the engine with disable_log_stats=False"):
        llm.llm_engine.get_metrics()
    llm.llm_engine.close()


class Listener:
    """Writes down the number and the time of what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[type[ev.Event], int, int, int]] = []

    def feed(self, event: ev.Event) -> None:
        self.heard.append((type(event), event.seq, event.ts, event.step))


def test_a_listener_hears_what_the_file_says(tmp_path: Path) -> None:
    listener, path = Listener(), tmp_path / "run.jsonl"
    recorder = Recorder.to_file(path, header(), listener)
    core = make_core(recorder)
    core.add(request("a", [5, 6, 7]))
    core.schedule()
    recorder.close()
    assert listener.heard == [(type(e), e.seq, e.ts, e.step) for e in read_trace(path).events] != []


def test_metrics_load_without_torch() -> None:
    code = "import engine.metrics, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "engine.metrics.collector" in loaded
    assert not {"torch", "numpy", "transformers", "engine.llm_engine"} & set(loaded)
