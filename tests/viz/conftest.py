"""The shipped traces, opened once."""

from __future__ import annotations

from functools import cache

import pytest

from engine.trace.file import read_trace
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
