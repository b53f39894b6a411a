"""The simulator: the engine's decisions on a virtual clock, and the what-ifs that a textbook would show."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from engine.cli import main
from engine.config import EngineConfig
from engine.metrics import MetricsCollector
from engine.metrics.summary import MetricsSummary
from engine.metrics.tally import Tally
from engine.trace import events as ev
from engine.trace.events import EventClass
from engine.trace.file import read_trace
from engine.trace.recorder import Recorder
from engine.workload import open_workload
from sim.cost_model.devices import DEVICES
from sim.cost_model.model_files import find_architecture
from sim.invariants import check
from sim.modeled import DraftingModel
from sim.recorded_run import run_recording
from sim.replay import replay
from sim.scenario import Scenario, resolve_scenario
from sim.simulation import Simulation

GALLERY = Path(__file__).parents[2] / "viz" / "traces"
LLAMA = find_architecture("llama-3.1-8b")


def scenario(**engine_args: Any) -> Scenario:
    config = EngineConfig.from_args("llama-3.1-8b", **{"max_model_len": 8192, **engine_args})
    return resolve_scenario(config, DEVICES["h100"], LLAMA)


def simulated(
    workload: str, trace: Path | None = None, drafting: DraftingModel | None = None, seed: int = 0, **engine_args: Any
) -> MetricsSummary:
    setting = scenario(**engine_args)
    record = None if trace is None else lambda clock: Recorder.to_file(trace, setting.header, clock=clock)
    return Simulation(setting, drafting, record).run(open_workload(workload, random.Random(seed))).summarise()


CROWDED = "synthetic:rate=60,num=60,input=uniform:50:600,output=uniform:5:200,prefix=160,groups=3"
TIGHT: dict[str, Any] = {"num_gpu_blocks_override": 600, "max_num_batched_tokens": 512, "max_num_seqs": 32}


def test_a_simulation_is_a_run_like_any_other(tmp_path: Path) -> None:
    summary = simulated(CROWDED, tmp_path / "a.jsonl", **TIGHT)
    trace = read_trace(tmp_path / "a.jsonl")
    assert summary.num_preemptions > 0 and summary.prefix_cache_hits > 0
    assert any(e.truncated_by == "token_budget" for e in trace.events if isinstance(e, ev.ScheduleRequest))
    report = replay(trace)
    assert report.num_divergences == 0 and report.num_decisions > 1000
    assert not check(trace).violations


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        simulated(CROWDED, tmp_path / name, **TIGHT)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_recording_changes_no_figure(tmp_path: Path) -> None:
    assert simulated(CROWDED, tmp_path / "a.jsonl", **TIGHT) == simulated(CROWDED, **TIGHT)


def test_the_figures_are_those_of_the_trace(tmp_path: Path) -> None:
    summary = simulated("synthetic:num=20,input=300,output=uniform:2:40", tmp_path / "a.jsonl", **TIGHT)
    trace = read_trace(tmp_path / "a.jsonl")
    run = MetricsCollector.of_events(trace.header.kv_cache, trace.events)
    # All requests come at 0, so that they enter the core when they arrive.
    assert Tally().and_those(run.requests, run.iterations).summarise() == summary


def test_drafts_are_right_as_often_as_they_should_be(tmp_path: Path) -> None:
    drafting = DraftingModel(num_speculative_tokens=3, acceptance_rate=0.7)
    in_any_batch = {"method": "ngram", "num_speculative_tokens": 3, "disable_by_batch_size": None}
    engine_args: dict[str, Any] = {"speculative_config": in_any_batch}
    summary = simulated("synthetic:num=60,output=120", tmp_path / "a.jsonl", drafting, **engine_args)
    assert summary.completed == 60 and summary.total_output_tokens == 60 * 120
    first = summary.accepted_at_position[0] / summary.num_drafts
    assert first == pytest.approx(0.7, abs=0.03)
    # 1 + 0.7 + 0.7² + 0.7³, a little less at the end of each request
    assert summary.mean_acceptance_length == pytest.approx(2.533, abs=0.08)
    assert replay(read_trace(tmp_path / "a.jsonl")).num_divergences == 0
    plain = simulated("synthetic:num=1,output=120")
    fast = simulated("synthetic:num=1,output=120", None, drafting, **engine_args)
    assert fast.duration < 0.55 * plain.duration


class Decisions:
    """Takes the decisions of a core."""

    def __init__(self) -> None:
        self.step = 0
        self.taken: list[ev.Event] = []

    def emit(self, event: ev.Event) -> None:
        if event.kind is EventClass.DECISION:
            event.step = self.step
            self.taken.append(event)


@pytest.mark.parametrize(
    "name", ["first-token", "mixed-batch", "prefix-hit", "eviction", "preemption", "chunked-prefill"]
)
def test_an_engine_s_own_times_lead_to_its_own_decisions(name: str) -> None:
    trace = read_trace(GALLERY / f"{name}.jsonl")
    decisions = Decisions()
    run_recording(trace, decisions)
    recorded = [event for event in trace.events if event.kind is EventClass.DECISION]
    for event in recorded:
        event.seq = event.ts = 0
    assert decisions.taken == recorded


# --- what a textbook would show ---------------------------------------------------------------------------------


def test_the_preemption_cliff() -> None:
    workload = "synthetic:rate=8,num=200,input=1000,output=1000"
    enough, short = (simulated(workload, num_gpu_blocks_override=blocks) for blocks in (11_000, 10_000))
    assert enough.num_preemptions == 0 < short.num_preemptions
    ttft = [run.latencies_ms["ttft"].percentiles[99] for run in (enough, short)]
    assert ttft[1] > 10 * ttft[0]


def test_head_of_line_blocking_without_chunks() -> None:
    workload = "synthetic:rate=2,num=40,input=7000,output=200"
    whole, chunks = (simulated(workload, max_num_batched_tokens=budget) for budget in (8192, 512))
    itl = [run.latencies_ms["itl"].percentiles[99] for run in (whole, chunks)]
    assert itl[0] > 3 * itl[1]


def test_a_shared_prefix_is_computed_once() -> None:
    workload = "synthetic:rate=10,num=200,input=100,output=50,prefix=3000"
    shared, alone = (simulated(workload, enable_prefix_caching=cached) for cached in (True, False))
    assert (shared.prefix_cache_hit_rate or 0) > 0.9
    assert shared.latencies_ms["ttft"].median < 0.4 * alone.latencies_ms["ttft"].median


def test_a_prompt_that_is_too_long_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "llama-3.1-8b", "--device", "h100", "--max-model-len", "100"]
    assert main(["simulate", "--workload", "synthetic:num=2,input=200", *arguments]) != 0
    assert "A prompt must have between 1 and 99 tokens, got 200." in capsys.readouterr().err


def test_how_sure_a_drafter_is_cannot_be_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    drafts = '{"method": "eagle", "num_speculative_tokens": 2, "draft_confidence_threshold": 0.3}'
    arguments = ["--model", "llama-3.1-8b", "--device", "h100", "--speculative-config", drafts]
    assert main(["simulate", "--workload", "synthetic:num=2,input=20,output=4", *arguments]) != 0
    assert "draft_confidence_threshold must be 0 where drafts are simulated" in capsys.readouterr().err


def test_configurations_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, budget in (("small", 256), ("large", 4096)):
        (tmp_path / f"{name}.yaml").write_text(f"max-num-batched-tokens: {budget}\n")
    arguments = ["--workload", "synthetic:rate=30,num=30", "--model", "qwen3-0.6b", "--device", "l4"]
    for name in ("small", "large"):
        arguments += ["--config", str(tmp_path / f"{name}.yaml")]
    arguments += ["--trace", str(tmp_path / "run.jsonl.zst"), "--output-json", str(tmp_path / "out.json")]
    assert main(["simulate", *arguments, "--goodput", "ttft:500"]) == 0
    shown = capsys.readouterr().out
    assert "small" in shown and "large" in shown and "goodput" in shown
    assert {path.name for path in tmp_path.glob("*.zst")} == {"run-small.jsonl.zst", "run-large.jsonl.zst"}
    assert '"mean_ttft_ms"' in (tmp_path / "out.json").read_text()


def test_what_cannot_be_simulated_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.yaml").write_text("max_num_seqz: 3\n")
    for arguments, why in (
        (["--device", "h100"], "needs a model"),
        (["--device", "b200", "--model", "qwen3-8b"], "There is no device 'b200'"),
        (["--device", "h100", "--model", "gpt-7"], "There is no config of 'gpt-7' here"),
        (["--device", "h100", "--model", "qwen3-8b", "--config", str(tmp_path / "bad.yaml")], "max_num_seqs"),
        (["--device", "h100", "--model", "qwen3-8b", "--goodput", "ttft"], "goodput takes objectives such as"),
    ):
        assert main(["simulate", "--workload", "synthetic:num=2", *arguments]) in (1, 2)
        assert why in capsys.readouterr().err


def test_prompts_known_by_the_ids_of_their_blocks_meet_in_the_prefix_cache(tmp_path: Path) -> None:
    lines = [
        '{"timestamp":0,"input_length":1100,"output_length":20,"hash_ids":[46,47,90]}',
        '{"timestamp":900,"input_length":1024,"output_length":26,"hash_ids":[46,47]}',
        '{"timestamp":900,"input_length":1030,"output_length":3,"hash_ids":[12,47,91]}',
    ]
    workload, trace = tmp_path / "mooncake.jsonl", tmp_path / "run.jsonl"
    workload.write_text("\n".join(lines) + "\n")
    requests = open_workload(str(workload), random.Random(0), format="mooncake")
    setting = scenario()
    Simulation(setting, None, lambda clock: Recorder.to_file(trace, setting.header, clock=clock)).run(requests)
    found = {e.request: e.num_hit_tokens for e in read_trace(trace).events if isinstance(e, ev.KVLookup)}
    # Both blocks of 512 tokens are there, but a prompt's last token is always computed; 47 behind 12 is another block.
    assert found == {0: 0, 1: 1008, 2: 0}
    assert replay(read_trace(trace)).num_divergences == 0
