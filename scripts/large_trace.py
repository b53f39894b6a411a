"""Measures how fluid a large trace is: `python scripts/large_trace.py --events 200000`.

Simulates a crowded run of about that many events, and prints how long it takes to open its trace, to draw a step of it
on the page and in every view, to find things in it, and, if asked for, to replay it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TypeVar

from streamlit.testing.v1 import AppTest

from engine.cli import main as orrery
from sim.replay import replay
from sim.timeline import Timeline
from viz.figures.finder import finder, jumps
from viz.figures.parts import Selection
from viz.figures.spine import spine
from viz.figures.stage import stage
from viz.jumps import Jump, land
from viz.search import search
from viz.views import VIEWS

_Result = TypeVar("_Result")

_APP = Path(__file__).parents[1] / "viz" / "app.py"
#: Events that a request of this workload brings, about.
_EVENTS_PER_REQUEST = 310
_QUESTIONS = ("preempted", "free_blocks < 4", "request == 'r3' and phase == 'decode'", "scheduled > 1000000")
#: Steps drawn in each view, spread over the trace.
_LOOKS = 12


def main() -> None:
    """Make the trace and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=200_000, help="about how many events the trace has")
    parser.add_argument("--trace", type=Path, help="measure this trace instead of making one")
    parser.add_argument("--replay", action="store_true", help="also replay it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = arguments.trace or _simulate(arguments.events, Path(folder) / "large.jsonl.zst")
        _measure(trace, with_replay=arguments.replay)


def _simulate(num_events: int, trace: Path) -> Path:
    """A pool too small for the load, so that requests are preempted, and prompts that begin alike."""
    workload = f"synthetic:rate=12,input=512,output=128,prefix=256,num={max(1, num_events // _EVENTS_PER_REQUEST)}"
    engine = ["--max-model-len", "4096", "--num-gpu-blocks-override", "900", "--max-num-seqs", "64"]
    run = ["--workload", workload, "--device", "a100", "--model", "llama-3.1-8b", "--trace", str(trace)]
    with redirect_stdout(StringIO()):
        status = orrery(["simulate", *run, *engine])
    if status:
        raise SystemExit(status)
    return trace


def _measure(path: Path, *, with_replay: bool) -> None:
    _say("open, for the first time", lambda: Timeline.open(path))
    timeline = _say("open again", lambda: Timeline.open(path))
    print(f"{'':44}{len(timeline.events):,} events, {len(timeline.steps):,} steps, ", end="")
    print(f"{timeline.summary().num_preemptions:,} preemptions")
    _say("spine, first", lambda: spine(timeline.series))
    _say("spine", lambda: spine(timeline.series))
    _page(path, timeline)
    for view in VIEWS:
        _step_changes(timeline, view)
    for question in _QUESTIONS:
        _find(timeline, question)
    for goal in ("next preemption", "previous change"):
        _jump(timeline, goal)
    if with_replay:
        report = _say("replay", lambda: replay(timeline.trace))
        print(f"{'':44}{report.num_decisions:,} decisions, {report.num_divergences} divergences")


def _page(path: Path, timeline: Timeline) -> None:
    """The page as the server makes it: opened anew, then from step to step."""
    page = AppTest.from_file(str(_APP), default_timeout=600)
    page.query_params["trace"] = str(path)
    _say("page: opened", page.run)
    times = []
    for step in _far_and_near(timeline):
        page.query_params["step"] = str(step)
        times.append(_seconds(page.run)[0])
    _say_times("page: another step", times)


def _step_changes(timeline: Timeline, view: str) -> None:
    selection = Selection(view=view)

    def draw(step: int) -> float:
        return _seconds(lambda: stage(timeline, timeline.step(step), selection))[0]

    _say_times(f"draw a step: {view}", [draw(step) for step in _far_and_near(timeline)])


def _far_and_near(timeline: Timeline) -> list[int]:
    """A jump far away, then one step on, several times."""
    steps = timeline.steps
    apart = max(1, len(steps) // _LOOKS)
    return [
        steps[min(place + more, len(steps) - 1)] for place in range(apart // 2, len(steps), apart) for more in (0, 1)
    ]


def _say_times(what: str, times: list[float]) -> None:
    print(f"{what:43} {statistics.median(times):8.3f} s, at most {max(times):.3f} s")


def _find(timeline: Timeline, question: str) -> None:
    search.cache_clear()
    middle = timeline.steps[len(timeline.steps) // 2]

    def look() -> str:
        found = search(timeline, question)
        landing = land(Jump("match", forward=True), timeline, middle, Selection(), found)
        return finder(question, found, landing.step, landing.words) + jumps(timeline, Selection())

    _say(f"find {question}", look)


def _jump(timeline: Timeline, goal: str) -> None:
    jump = Jump.read(goal)
    assert jump is not None
    middle = timeline.steps[len(timeline.steps) // 2]
    _say(f"jump: {goal}", lambda: land(jump, timeline, middle, Selection(block=5), None))


def _say(what: str, work: Callable[[], _Result]) -> _Result:
    seconds, result = _seconds(work)
    print(f"{what:43} {seconds:8.3f} s")
    return result


def _seconds(work: Callable[[], _Result]) -> tuple[float, _Result]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


if __name__ == "__main__":
    main()
