"""Takes the pictures of the app that README and docs show: `python scripts/screenshots.py`.

Starts the app, opens it in Chromium and writes docs/images/*.png. Look at them before committing.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_ROOT = Path(__file__).parents[1]
_IMAGES = _ROOT / "docs" / "images"


class Shot(NamedTuple):
    """One picture."""

    name: str
    query: str
    width: int = 1280
    height: int = 800
    scheme: str = "light"
    pixels: int = 1
    element: str | None = None
    """Selector of what is taken; None: all that a screen shows."""


def _figure(name: str, query: str, element: str = ".stage", scheme: str = "light") -> Shot:
    """A figure for docs/figures.md, as high as it is."""
    return Shot(f"figures/{name}", query, 1180, 2600, scheme, element=element)


SHOTS = (
    Shot("app-light", "?trace=prefix-hit&step=10"),
    Shot("app-dark", "?trace=prefix-hit&step=10", scheme="dark"),
    Shot("scheduler", "?trace=preemption&step=21&view=scheduler"),
    Shot("kv-memory", "?trace=eviction&step=17&view=kv", scheme="dark"),
    Shot("forward-pass", "?trace=mixed-batch&step=4&view=forward"),
    Shot("gallery", "?page=gallery"),
    Shot("quiz", "?page=quiz&trace=crowded&question=7&answers=------2"),
    Shot("what-if", "?page=what-if&trace=preemption&step=22&fork=1&num_gpu_blocks=16", 1280, 1000),
    Shot("phone", "?trace=prefix-hit&step=10", 390, 844, pixels=2),
    _figure("engine-map", "?trace=prefix-hit&step=10&view=engine", ".panel.engine-map"),
    _figure("kv-memory", "?trace=preemption&step=21&view=kv", ".panel.kv"),
    _figure("forward-pass", "?trace=mixed-batch&step=4&view=forward", ".panel.forward"),
    _figure("prefix-cache", "?trace=eviction&step=27&view=prefix", ".panel.prefix"),
    _figure("chunked-prefill", "?trace=chunked-prefill&step=5&view=chunks"),
    _figure("guided-decoding", "?trace=fsm-choice&step=2&view=guided", ".panel.guided"),
    _figure("speculative-decoding", "?trace=spec-draft&step=8&view=speculation", ".panel.speculation"),
    _figure("life-lines", "?trace=crowded&step=12&view=life"),
    _figure("preemption", "?trace=preemption&step=35&view=preemption"),
    _figure("why", "?trace=head-of-line&step=4&view=scheduler&req=2"),
    _figure("checks", "?trace=crowded&step=12&view=checks"),
    _figure("raw-events", "?trace=preemption&step=21&view=events"),
    _figure("latency", "?trace=mixed-batch&step=9&view=latency"),
    _figure("statistics", "?trace=preemption&step=30&view=statistics"),
    _figure("roofline", "?trace=mixed-batch&step=9&view=roofline"),
    _figure("quiz", "?page=quiz&trace=crowded&question=7&answers=------2"),
    _figure("what-if", "?page=what-if&trace=preemption&step=22&fork=1&max_num_seqs=2", ".what-if"),
)


def main() -> None:
    """Take all of them."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("There is no Chromium (on Debian: apt install chromium).")
    _IMAGES.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", str(_ROOT / "viz" / "app.py"), "--server.headless", "true"]
    app = subprocess.Popen([*command, "--server.port", str(port)], stdout=subprocess.DEVNULL)
    try:
        _wait(f"http://localhost:{port}/_stcore/health")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for shot in SHOTS:
                _take(browser, f"http://localhost:{port}/", shot)
    finally:
        app.terminate()


def _wait(url: str) -> None:
    for _ in range(200):
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    sys.exit("The app did not start.")


def _take(browser: Browser, url: str, shot: Shot) -> None:
    page = browser.new_page(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme=shot.scheme,  # type: ignore[arg-type]
        device_scale_factor=shot.pixels,
    )
    page.goto(url + shot.query)
    page.wait_for_selector(".board .panel, .board .situations")
    page.evaluate("document.fonts.ready")
    page.wait_for_timeout(800)  # Streamlit settles the height of the page
    path = _IMAGES / f"{shot.name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    if shot.element is None:
        page.screenshot(path=path)
    else:
        figure = page.locator(shot.element).first
        figure.evaluate("figure => { figure.style.alignSelf = 'start'; }")  # no higher than what it holds
        figure.screenshot(path=path)
    page.close()


if __name__ == "__main__":
    main()
