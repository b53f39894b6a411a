"""A run of the engine in a process of its own: `python -m viz.live RECIPE.json TRACE.jsonl`.

The app itself never imports torch: it starts this, and reads the trace file while it grows.
"""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine.errors import OrreryError
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from engine.llm_engine import LLMEngine

#: Seconds that a run has to end its step when it is stopped.
_PATIENCE_S = 20
HOW_TO_INSTALL = "pip install 'llm-orrery[engine]'"


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A request, and when it comes."""

    prompt: str
    sampling_params: SamplingParams
    after_step: int = 0
    priority: int = 0


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a run needs; the same recipe gives the same trace."""

    arrivals: tuple[Arrival, ...]
    model: str = "orrery-tiny"
    engine_args: dict[str, Any] = {}
    seconds_per_step: float = 0.0
    """Waited after each step, so that a person can watch."""


def run(recipe: Recipe, trace: Path) -> None:
    """Run a recipe to its end and record it.

    Raises:
        OrreryError: the engine cannot be built like that, or a request is invalid.
    """
    from engine.llm_engine import LLMEngine

    engine = LLMEngine.from_engine_args(recipe.model, trace=trace, **recipe.engine_args)
    to_come = sorted(enumerate(recipe.arrivals), key=lambda arrival: arrival[1].after_step)
    step = 0
    while to_come or engine.has_unfinished_requests():
        if not engine.has_unfinished_requests():
            step = max(step, to_come[0][1].after_step)
        while to_come and to_come[0][1].after_step <= step:
            _add(engine, *to_come.pop(0))
        engine.step()
        step += 1
        time.sleep(recipe.seconds_per_step)


def _add(engine: LLMEngine, number: int, arrival: Arrival) -> None:
    engine.add_request(f"request-{number}", arrival.prompt, arrival.sampling_params, priority=arrival.priority)


def can_run() -> bool:
    """Whether the packages of the engine are installed; does not import them."""
    return importlib.util.find_spec("torch") is not None


@dataclass
class LiveRun:
    """A run that was started, and the files it writes."""

    process: subprocess.Popen[bytes]
    trace: Path
    log: Path
    stopped: bool = False
    """Somebody ended it before its time."""

    @classmethod
    def start(cls, recipe: Recipe) -> LiveRun:
        """Start a process that runs a recipe; its trace appears as soon as the model is loaded."""
        folder = Path(tempfile.mkdtemp(prefix="orrery-live-"))
        (folder / "recipe.json").write_bytes(msgspec.json.encode(recipe))
        trace, log = folder / "live-run.jsonl", folder / "log.txt"
        with log.open("wb") as log_file:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(folder / "recipe.json"), str(trace)],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
            )
        return cls(process, trace, log)

    @property
    def running(self) -> bool:
        """Whether more may come."""
        return self.process.poll() is None

    @property
    def has_trace(self) -> bool:
        """Whether the trace has its header, so that it can be read."""
        return self.trace.exists() and self.trace.stat().st_size > 0

    @property
    def failure(self) -> str | None:
        """Why it ended before its time, in one sentence; None if it did not."""
        code = self.process.poll()
        if not code or self.stopped or code in (-signal.SIGTERM, 128 + signal.SIGTERM):
            return None
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else f"The engine ended with exit code {code} and said nothing."

    def stop(self) -> None:
        """End the run after the step it is in; what was recorded stays."""
        self.stopped = True
        self.process.terminate()
        try:
            self.process.wait(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:  # its step does not end
            self.process.kill()
            self.process.wait()


def main(arguments: Sequence[str]) -> int:
    """Run the recipe in the first file and record it in the second."""
    recipe_path, trace = map(Path, arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    recipe = msgspec.json.decode(recipe_path.read_bytes(), type=Recipe)
    try:
        run(recipe, trace)
    except OrreryError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
