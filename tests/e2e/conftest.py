"""The app as a real process, and a real browser."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.visit import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_APP = Path(__file__).parents[2] / "viz" / "app.py"


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def app_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the running app, started as the README says."""
    port = free_port()
    folder = tmp_path_factory.mktemp("app")
    command = [sys.executable, "-m", "streamlit", "run", str(_APP), "--server.port", str(port)]
    command += ["--server.headless", "true", "--server.address", "localhost", "--server.fileWatcherType", "none"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        assert answers(process, f"http://localhost:{port}/_stcore/health"), (folder / "log.txt").read_text()
        yield f"http://localhost:{port}"
    finally:
        process.terminate()
        process.wait(timeout=20)


def answers(process: subprocess.Popen[bytes], url: str) -> bool:
    """Wait until a process that was just started answers; whether it did."""
    for _ in range(300):
        if process.poll() is not None:
            return False
        try:
            with urllib.request.urlopen(url, timeout=5):
                return True
        except OSError:
            time.sleep(0.1)
    return False


@pytest.fixture(scope="session")
def browser(chromium_path: Path) -> Iterator[Browser]:
    """Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(chromium_path), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Browser, app_url: str) -> Iterator[Visit]:
    """A visit at a desk; it must end without a complaint."""
    visit = Visit(browser, app_url)
    yield visit
    visit.context.close()
    assert visit.complaints == []
