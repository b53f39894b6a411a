"""A live run is a process that writes a trace, and says in a sentence why it could not."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from streamlit.testing.v1 import AppTest

from engine.sampling_params import SamplingParams
from engine.trace.file import read_trace
from sim.replay import replay
from sim.timeline import Timeline
from viz import live
from viz.live import Arrival, LiveRun, Recipe
from viz.open_trace import SHIPPED
from viz.traces.make import RECIPES

_APP = Path(__file__).parents[2] / "viz" / "app.py"
_PARAMS = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
_SMALL = {"num_gpu_blocks_override": 16, "max_model_len": 64}


def test_runs_a_recipe_and_its_trace_proves_itself() -> None:
    arrivals = (
        Arrival(prompt="The sea was calm", sampling_params=_PARAMS),
        Arrival(prompt="The fox said", sampling_params=_PARAMS, after_step=3),
        Arrival(prompt="Long after the others", sampling_params=_PARAMS, after_step=30),
    )
    run = LiveRun.start(Recipe(arrivals=arrivals, engine_args=_SMALL))
    run.process.wait(timeout=120)
    assert run.failure is None
    trace = read_trace(run.trace)
    assert Timeline(trace).summary().num_finished == 3
    assert [event.step for event in Timeline(trace).step(4).arrivals] == [3]
    assert replay(trace).num_divergences == 0


def test_stops_between_steps_and_keeps_what_was_recorded() -> None:
    slow = Recipe(
        arrivals=(Arrival(prompt="The sea", sampling_params=_PARAMS),), engine_args=_SMALL, seconds_per_step=5
    )
    run = LiveRun.start(slow)
    while not (run.has_trace and Timeline(read_trace(run.trace)).steps):
        assert run.running, run.failure
        time.sleep(0.05)
    run.stop()
    assert not run.running
    assert run.failure is None
    trace = read_trace(run.trace)
    assert trace.truncated is None
    assert len(Timeline(trace).steps) < 8


def test_a_step_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_PATIENCE_S", 0.05)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # it hears nothing from here on
    run = LiveRun(process, tmp_path / "run.jsonl", tmp_path / "log.txt")
    run.stop()
    assert process.returncode == -signal.SIGKILL
    assert run.failure is None
    process.stdout.close()


def test_says_why_it_could_not_run() -> None:
    arrival = Arrival(prompt="The sea", sampling_params=_PARAMS)
    for recipe, words in (
        (Recipe(arrivals=(arrival,), engine_args={"max_num_seqs": 0}), "max_num_seqs must be"),
        (Recipe(arrivals=(arrival,), model="no-such-model"), "no-such-model"),
    ):
        run = LiveRun.start(recipe)
        run.process.wait(timeout=120)
        assert run.failure is not None
        assert words in run.failure
        assert "Traceback" not in run.log.read_text()


def test_shipped_traces_are_of_their_recipes() -> None:
    for name, recipe in RECIPES.items():
        timeline = Timeline(read_trace(SHIPPED / f"{name}.jsonl"))
        requests = timeline.step(timeline.steps[-1]).after.requests.values()
        assert len(requests) == len(recipe.arrivals)
        assert all(request.finished for request in requests)
        assert replay(timeline.trace).num_divergences == 0
        assert msgspec.json.decode(msgspec.json.encode(recipe), type=Recipe) == recipe


def test_each_shipped_trace_shows_its_situation_at_its_step() -> None:
    from viz.gallery import situation

    facts = {}
    for name in RECIPES:
        shown = situation(name)
        assert shown is not None
        facts[name] = Timeline(read_trace(SHIPPED / f"{name}.jsonl")).series[shown.step - 1]
    assert facts["first-token"].output_tokens == 1
    assert facts["mixed-batch"].prefill_tokens > 1
    assert facts["mixed-batch"].decode_tokens > 1
    assert facts["prefix-hit"].hit_tokens > 0
    assert facts["eviction"].evictions > 0
    assert facts["preemption"].preemptions > 0
    chunked = Timeline(read_trace(SHIPPED / "chunked-prefill.jsonl")).series
    assert sum(step.prefill_tokens == 24 and step.decode_tokens == 2 for step in chunked) > 1


def test_the_knobs_stay_before_whoever_is_told_that_one_is_wrong() -> None:
    test = AppTest.from_file(str(_APP), default_timeout=60)
    test.query_params["page"] = "live"
    test.run()
    next(field for field in test.number_input if field.label == "num_gpu_blocks").set_value(2)
    test.button[0].click().run()
    run: LiveRun = test.session_state["live run"]
    run.process.wait(timeout=120)
    assert run.failure is not None
    test.run()
    (knobs,) = test.expander
    assert knobs.label == "Run again with other prompts and knobs"
    assert knobs.proto.expanded
    assert next(field.value for field in test.number_input if field.label == "num_gpu_blocks") == 2
