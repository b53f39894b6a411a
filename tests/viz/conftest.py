"""The shipped traces, opened once."""

from __future__ import annotations

import random
from functools import cache

import pytest

from engine.config import EngineConfig
from engine.trace.file import read_trace
from engine.trace.recorder import Recorder
from engine.workload import open_workload
from sim.cost_model.device_file import find_device
from sim.cost_model.model_files import find_architecture
from sim.scenario import resolve_scenario
from sim.simulation import Simulation
from sim.timeline import StepView, Timeline
from tests.core.driver import record_crowd
from viz.gallery import GALLERY
from viz.open_trace import SHIPPED


@cache
def shipped(name: str) -> Timeline:
    """A trace of the gallery."""
    return Timeline(read_trace(SHIPPED / f"{name}.jsonl"))


@pytest.fixture(scope="session", params=[situation.name for situation in GALLERY])
def timeline(request: pytest.FixtureRequest) -> Timeline:
    """Each trace of the gallery in turn."""
    return shipped(request.param)


@pytest.fixture(scope="session")
def views(timeline: Timeline) -> list[StepView]:
    """Every step of it, folded once: not to be changed."""
    return [timeline.step(number) for number in timeline.steps]


@pytest.fixture(scope="session")
def connected(tmp_path_factory: pytest.TempPathFactory) -> list[StepView]:
    """A crowd of which half the KV comes from elsewhere."""
    path = tmp_path_factory.mktemp("trace") / "crowd.jsonl"
    timeline = Timeline(record_crowd(path, seed=4, connected=True, num_blocks=18))
    return [timeline.step(number) for number in timeline.steps]


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """A simulated run in a pool of 200,000 blocks, whose requests begin alike."""
    path = tmp_path_factory.mktemp("trace") / "large.jsonl"
    config = EngineConfig.from_args("llama-3.1-8b", num_gpu_blocks_override=200_000, max_model_len=4096)
    scenario = resolve_scenario(config, find_device("h200"), find_architecture("llama-3.1-8b"))
    requests = open_workload("synthetic:rate=50,num=60,input=1500,output=8,prefix=400", random.Random(0))
    Simulation(scenario, trace=lambda clock: Recorder.to_file(path, scenario.header, clock=clock)).run(requests)
    return Timeline.open(path)
