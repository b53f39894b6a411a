"""A measured process: this engine and `transformers` as peers, and what becomes of one that fails."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.bench.peers.protocol import Request
from engine.bench.process import PeerError, PeerProcess

REQUESTS = [Request([5, 6, 7, 8], 6), Request([9, 10], 3), Request([11], 1)]
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


def start(driver: str, settings: Mapping[str, Any], timeout: float = 100.0) -> PeerProcess:
    return PeerProcess(Path(sys.executable), driver, settings, ENVIRONMENT, timeout)


@pytest.mark.parametrize(
    ("driver", "settings"),
    [("orrery_engine", {"max_model_len": 64, "max_num_seqs": 2}), ("hf_generate", {})],
)
def test_a_peer_makes_the_tokens_that_are_asked_for_and_tells_its_times(
    driver: str, settings: dict[str, Any], tiny_model_path: Path
) -> None:
    with start(driver, {"model": str(tiny_model_path), "dtype": "float32", **settings}) as process:
        assert process.seconds_to_ready > 0
        for _ in range(2):
            answer = process.run(REQUESTS, 100.0)
            assert answer.output_tokens == 10
            assert answer.tokens_per_second == 10 / answer.elapsed
            assert answer.ttft is not None and 0 < answer.ttft < answer.elapsed
            assert answer.itl is not None and 0 < answer.itl < answer.elapsed
        assert process.run([REQUESTS[2]], 100.0).itl is None
        assert process.peak_memory_bytes() > 100e6


def test_a_peer_that_cannot_start_says_why() -> None:
    with pytest.raises(PeerError, match="no-such-model"):
        start("orrery_engine", {"model": "no-such-model"})


def test_a_peer_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    marker = tmp_path / "child"
    driver = tmp_path / "python"
    driver.write_text(f"#!/bin/sh\nsleep 1000 & echo $! > {marker}\nwait\n")
    driver.chmod(0o755)
    with pytest.raises(PeerError, match="did not answer within 1 s"):
        PeerProcess(driver, "none", {}, {}, 1.0)
    child = int(marker.read_text())
    deadline = time.monotonic() + 20
    while _runs(child):
        assert time.monotonic() < deadline, "the process that it had started still runs"
        time.sleep(0.05)


def test_a_peer_that_makes_too_few_tokens_is_not_measured(tmp_path: Path) -> None:
    driver = tmp_path / "python"
    answer = '{"elapsed": 1.0, "output_tokens": 9, "ttft": null, "itl": null}'
    driver.write_text(f"#!/bin/sh\necho '{{\"ready\": true}}'\nread line\necho '{answer}'\n")
    driver.chmod(0o755)
    with PeerProcess(driver, "none", {}, {}, 10.0) as process, pytest.raises(PeerError, match="9 tokens where 10"):
        process.run(REQUESTS, 10.0)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that has ended and that nobody has asked about yet does not run.
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
