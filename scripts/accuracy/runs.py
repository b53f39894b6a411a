"""The runs: those that the simulator learns from, and those that it has to predict."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from engine.workload import WorkloadRequest, open_workload

#: What all runs share; a run's own arguments count more.
COMMON: Mapping[str, Any] = {
    "max_model_len": 1024,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 512,
    "num_gpu_blocks_override": 1100,
}


class CalibrationRun(NamedTuple):
    """Requests that come all at once."""

    name: str
    num_requests: int
    shape: str
    """Lengths, as `--workload synthetic:` takes them."""
    engine_args: Mapping[str, Any]

    def requests(self) -> list[WorkloadRequest]:
        """They are the same every time."""
        return made_up(f"{self.shape},num={self.num_requests}", seed=0)


class HeldOutRun(NamedTuple):
    """Requests that come at a rate."""

    name: str
    load: float
    """Requests that come, as a share of those that the simulator says the engine can serve in the same time."""
    shape: str
    """Lengths, prefixes and burstiness, as `--workload synthetic:` takes them."""
    engine_args: Mapping[str, Any]
    is_repeated: bool = False
    """Whether the real run is made three times."""

    @property
    def is_saturated(self) -> bool:
        """Whether more comes than can be served, so that the queue, and TTFT with it, grows for as long as it runs."""
        return self.load > 1

    def requests(self, capacity: float, seconds: float) -> list[WorkloadRequest]:
        """The same every time for the same capacity.

        Args:
            capacity: requests per second that the engine can serve.
            seconds: how long serving them shall take.
        """
        count = max(8, round(capacity * min(self.load, 1.0) * seconds))
        return made_up(f"{self.shape},rate={capacity * self.load},num={count}", seed=1)

    def backlog(self) -> list[WorkloadRequest]:
        """Requests of this shape all at once, enough of them to keep an engine busy."""
        return [request._replace(arrival_ns=0) for request in made_up(f"{self.shape},num=48", seed=2)]


def made_up(words: str, seed: int) -> list[WorkloadRequest]:
    """The requests of a synthetic workload."""
    return list(open_workload(f"synthetic:{words}", random.Random(seed)))


def shortened(run: CalibrationRun, factor: float) -> CalibrationRun:
    """The same with fewer requests."""
    return run._replace(num_requests=max(4, math.ceil(run.num_requests * factor)))


CALIBRATION = (
    CalibrationRun("one at a time", 14, "input=uniform:8:480,output=32", {"max_num_seqs": 1}),
    CalibrationRun("four at a time", 32, "input=uniform:16:256,output=uniform:16:64", {"max_num_seqs": 4}),
    CalibrationRun("many decodes", 40, "input=uniform:8:160,output=uniform:32:128", {"max_num_seqs": 32}),
    CalibrationRun("long prompts", 16, "input=uniform:200:900,output=uniform:4:24", {}),
    CalibrationRun("small chunks", 24, "input=uniform:32:500,output=uniform:8:64", {"max_num_batched_tokens": 64}),
)

_CHAT = "input=uniform:32:256,output=uniform:16:96"
_DOCUMENT = "input=uniform:300:800,output=uniform:8:48"
_SHARED = "input=uniform:16:128,output=uniform:16:64,prefix=320,groups=3"

HELD_OUT = (
    HeldOutRun("chat, light", 0.3, _CHAT, {}),
    HeldOutRun("chat", 0.6, _CHAT, {}, is_repeated=True),
    HeldOutRun("chat, busy", 0.8, _CHAT, {}),
    HeldOutRun("chat in bursts", 0.6, f"{_CHAT},burstiness=0.3", {}),
    HeldOutRun("chat, 4 at a time", 0.6, _CHAT, {"max_num_seqs": 4}),
    HeldOutRun("documents", 0.6, _DOCUMENT, {}, is_repeated=True),
    HeldOutRun("documents, small budget", 0.6, _DOCUMENT, {"max_num_batched_tokens": 128}),
    HeldOutRun("documents, large budget", 0.6, _DOCUMENT, {"max_num_batched_tokens": 1024, "max_num_seqs": 32}),
    HeldOutRun("stories", 0.6, "input=uniform:16:64,output=uniform:100:300", {}),
    HeldOutRun("mixed lengths", 0.7, "input=lognormal:150:70,output=lognormal:50:30", {}),
    HeldOutRun("shared prefixes", 0.6, _SHARED, {}, is_repeated=True),
    HeldOutRun("the same, not cached", 0.6, _SHARED, {"enable_prefix_caching": False}),
    HeldOutRun("short of blocks", 0.8, f"{_CHAT},burstiness=0.3", {"num_gpu_blocks_override": 66}),
    HeldOutRun("too many chats", 1.5, _CHAT, {}),
    HeldOutRun("too many, short of blocks", 1.5, _CHAT, {"num_gpu_blocks_override": 90}),
)
