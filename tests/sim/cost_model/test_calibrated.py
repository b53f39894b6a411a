"""What is learned from recorded steps: known terms are found again, and bad recordings are refused."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from engine.cli import main
from engine.config import EngineConfig, KVCacheConfig, KVCacheGroup
from engine.errors import ConfigError, TraceError
from engine.trace.events import SchedulePreempted, StepScheduled
from engine.trace.file import read_trace
from engine.trace.recorder import Recorder
from engine.workload import open_workload
from sim.calibrate_cli import calibrate_from
from sim.cost_model.calibrated import TERMS, CalibratedModel, fit
from sim.cost_model.composition import RowShare, StepComposition
from sim.cost_model.device_file import find_device, write_device
from sim.cost_model.devices import DEVICES
from sim.cost_model.least_squares import non_negative_least_squares
from sim.cost_model.recorded_steps import RecordedStep, composition_of, recorded_steps
from sim.scenario import Scenario
from sim.simulation import Simulation
from tests.core.driver import record_crowd
from tests.model_facts import model_facts

MODEL = model_facts()
KV_CACHE = KVCacheConfig(
    num_gpu_blocks=100, block_size=16, groups=(KVCacheGroup(num_layers=1, block_bytes=1),), none_hash="00"
)
GALLERY = Path(__file__).parents[3] / "viz" / "traces"


def some_steps(model: CalibratedModel, number: int, noise: float = 0.0) -> list[RecordedStep]:
    draw = random.Random(1)
    steps = []
    for step in range(1, number + 1):
        rows = [RowShare(draw.randrange(1, 900), 1, 1) for _ in range(draw.randrange(0, 20))]
        rows += [RowShare(draw.randrange(0, 200), draw.randrange(2, 200), draw.randrange(2)) for _ in range(step % 3)]
        composition = StepComposition.of(rows or [RowShare(5, 1, 1)])
        duration = model.step_ns(composition) * (1 + noise * draw.uniform(-1, 1))
        steps.append(RecordedStep(step, composition, round(duration)))
    return steps


def test_the_terms_of_a_machine_are_found_again() -> None:
    known = CalibratedModel(8, (700_000.0, 3_000_000.0, 20_000.0, 600_000.0, 150_000.0, 900.0, 40.0))
    device = fit(some_steps(known, 400), name="cpu", model=MODEL, kv_cache=KV_CACHE, traces=("a",))
    assert device.knee == 8
    assert [device.terms_ns[name] for name in TERMS] == pytest.approx(known.terms_ns, rel=0.01)
    assert all(residual.median_error < 1e-3 for residual in device.residuals.values())
    assert set(device.residuals) == {"prefill", "decode", "mixed"}


def test_disturbed_steps_are_left_out() -> None:
    known = CalibratedModel(4, (1e6, 1e6, 0.0, 5e5, 1e5, 500.0, 30.0))
    steps = some_steps(known, 300, noise=0.05)
    spoiled = [step._replace(duration_ns=step.duration_ns * 9) if not step.step % 50 else step for step in steps]
    device = fit(spoiled, name="cpu", model=MODEL, kv_cache=KV_CACHE, traces=("a",))
    assert device.num_left_out >= 6
    fitted = device.model_of_time()
    errors = [fitted.step_ns(s.composition) / known.step_ns(s.composition) - 1 for s in steps]
    assert max(map(abs, errors)) < 0.05


def test_no_term_is_negative() -> None:
    assert non_negative_least_squares([[1, 1], [1, 2], [1, 3]], [3, 2, 1]) == pytest.approx([2.0, 0.0], abs=1e-6)
    assert non_negative_least_squares([[1, 0], [1, 1], [1, 2]], [1, 3, 5]) == pytest.approx([1.0, 2.0])


def test_steps_are_read_from_a_real_trace() -> None:
    trace = read_trace(GALLERY / "mixed-batch.jsonl")
    steps = list(recorded_steps(trace.events))
    executed = [event for event in trace.events if type(event).__struct_config__.tag == "step.executed"]
    assert [step.composition.num_tokens for step in steps] == [event.num_tokens for event in executed]  # type: ignore[attr-defined]
    assert {step.composition.phase for step in steps} == {"prefill", "mixed", "decode"}
    for step, event in zip(steps, executed, strict=True):
        assert step.duration_ns > event.prepare_ns + event.forward_ns + event.sample_ns  # type: ignore[attr-defined]


def test_a_row_that_a_preemption_took_back_is_not_in_its_step(tmp_path: Path) -> None:
    events = record_crowd(tmp_path / "crowd.jsonl", seed=3, policy="priority").events
    assert any(isinstance(event, SchedulePreempted) and event.was_scheduled for event in events)
    planned = {e.step: e.total_num_scheduled_tokens for e in events if isinstance(e, StepScheduled)}
    for recorded in recorded_steps(events):
        assert recorded.composition.num_tokens == planned[recorded.step]
        own = [event for event in events if event.step == recorded.step]
        assert composition_of(recorded.step, own) == recorded.composition


def test_a_step_ends_with_the_next_and_never_holds_the_time_in_which_the_engine_was_idle(tmp_path: Path) -> None:
    known = CalibratedModel(4, (1e6, 1e6, 0.0, 5e5, 1e5, 500.0, 30.0))
    config = EngineConfig.from_args("m", max_num_batched_tokens=64, max_num_seqs=4)
    setting = Scenario(config, MODEL, KV_CACHE, known, "test")
    path = tmp_path / "run.jsonl"
    simulation = Simulation(setting, trace=lambda clock: Recorder.to_file(path, setting.header, clock=clock))
    simulation.run(open_workload("synthetic:num=40,rate=10,input=100,output=uniform:1:9", random.Random(0)))
    steps = list(recorded_steps(read_trace(path).events))
    assert [step.duration_ns for step in steps] == [known.step_ns(step.composition) for step in steps]
    busy_ns = sum(step.duration_ns for step in steps)
    assert simulation.num_steps == len(steps) and simulation.clock.now_ns > 1.2 * busy_ns  # it was idle now and then


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(TraceError, match="needs at least 30 executed steps, the traces hold"):
        calibrate_from([GALLERY / "first-token.jsonl"])


def test_a_device_survives_its_file(tmp_path: Path) -> None:
    known = CalibratedModel(4, (1e6, 1e6, 0.0, 5e5, 1e5, 500.0, 30.0))
    device = fit(some_steps(known, 100), name="cpu", model=MODEL, kv_cache=KV_CACHE, traces=("a",))
    for each in (device, DEVICES["h100"]):
        write_device(each, tmp_path / "device.json")
        assert find_device(str(tmp_path / "device.json")) == each


def test_devices_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no device 'b200': name one of a100, h100"):
        find_device("b200")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ConfigError, match="does not describe a device"):
        find_device(str(tmp_path / "x.json"))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = [str(GALLERY / f"{name}.jsonl") for name in ("preemption", "prefix-hit", "eviction", "mixed-batch")]
    assert main(["calibrate", *traces, "-o", str(tmp_path / "d.json")]) == 0
    assert "token" in capsys.readouterr().out
    device = msgspec.json.decode((tmp_path / "d.json").read_bytes())
    assert device["kind"] == "calibrated" and set(device["terms_ns"]) == set(TERMS)
