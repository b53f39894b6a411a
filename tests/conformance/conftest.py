"""`pytest tests/conformance --vectors FILE` runs another file of recorded decisions than those in `vectors/`."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec
import pytest

VECTORS = Path(__file__).parent / "vectors"
RECORDED = [VECTORS / "vllm_scheduler.jsonl.gz", VECTORS / "vllm_scheduler_more.jsonl.gz"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--vectors", type=Path, help="decisions recorded from vLLM, .jsonl or .jsonl.gz, one case a line")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "workload" in metafunc.fixturenames:
        given = metafunc.config.getoption("vectors", default=None)
        cases = [case for path in ([given] if given else RECORDED) for case in _read(path)]
        metafunc.parametrize("workload", cases, ids=[f"{case['family']}-{case['seed']}" for case in cases])


def _read(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    return [msgspec.json.decode(line) for line in data.splitlines() if line.strip()]
