"""What a measured process and the benchmark say to each other: lines of JSON over standard input and output.

::

    benchmark                        process of a peer
        │──── settings (argument) ───────▶ │  loads its model
        │ ◀── {"ready": true} ─────────────│
        │──── [{"prompt": [ids], "out": n}, …] ▶│  generates them all at once
        │ ◀── {"elapsed": s, "output_tokens": n, "ttft": s, "itl": s} ─│
        │──── end of input ──────────────▶ │  leaves
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol


class Request(NamedTuple):
    """One request of a workload: greedy, and the end of sequence is ignored."""

    prompt: list[int]
    out: int


class Timing(NamedTuple):
    """What one request saw, by the peer's own clock; None: the peer cannot tell."""

    output_tokens: int
    ttft: float | None
    """Seconds from the request to its first token."""
    itl: float | None
    """Mean seconds from one token to the next; None as well for a single token."""


class Peer(Protocol):
    """An engine with its model loaded."""

    def run(self, requests: Sequence[Request]) -> list[Timing]:
        """Generate all requests, given at once."""

    def close(self) -> None:
        """Leave nothing running."""


def serve(load: Callable[[dict[str, Any]], Peer]) -> None:
    """Load a peer with the settings of the command line, then answer workloads until the input ends."""
    # Engines print what they like; the answers keep the real standard output to themselves.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(**answer: object) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    peer = load(json.loads(sys.argv[1]))
    try:
        say(ready=True)
        for line in sys.stdin:
            requests = [Request(each["prompt"], each["out"]) for each in json.loads(line)]
            started = time.perf_counter()
            timings = peer.run(requests)
            elapsed = time.perf_counter() - started
            say(
                elapsed=elapsed,
                output_tokens=sum(timing.output_tokens for timing in timings),
                ttft=mean(timing.ttft for timing in timings),
                itl=mean(timing.itl for timing in timings),
            )
    finally:
        peer.close()


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def per_token(first: float, last: float, output_tokens: int) -> float | None:
    """Mean seconds between the tokens of a request whose first and last came at these times."""
    return (last - first) / (output_tokens - 1) if output_tokens > 1 else None
