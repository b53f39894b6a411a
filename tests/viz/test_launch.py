"""`orrery app` starts the app on a trace, and refuses a file that is none."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import answers, free_port
from viz.open_trace import SHIPPED

_ORRERY = [sys.executable, "-m", "engine.cli", "app"]


def test_starts_on_a_trace_and_ends_when_it_is_told(tmp_path: Path) -> None:
    port = free_port()
    trace = SHIPPED / "first-token.jsonl"
    with (tmp_path / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [*_ORRERY, str(trace), "--port", str(port), "--no-browser"], stdout=log, stderr=log, cwd=tmp_path
        )
    try:
        assert answers(process, f"http://localhost:{port}/_stcore/health"), (tmp_path / "log.txt").read_text()
    finally:
        process.terminate()
        process.wait(timeout=20)
    assert not answers(process, f"http://localhost:{port}/_stcore/health")


def test_refuses_what_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a trace\n")
    for name in ("nowhere.jsonl", "notes.txt"):
        done = subprocess.run([*_ORRERY, name], capture_output=True, text=True, cwd=tmp_path, check=False, timeout=60)
        assert done.returncode == 1
        assert name in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_port_in_use_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("localhost", 0)) as other:
        port = other.getsockname()[1]
        command = [*_ORRERY, "--port", str(port), "--no-browser"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr == f"orrery app: port {port} is in use: choose another with --port.\n"
