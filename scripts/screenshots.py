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


SHOTS = (
    Shot("app-light", "?trace=prefix-hit&step=10"),
    Shot("app-dark", "?trace=prefix-hit&step=10", scheme="dark"),
    Shot("scheduler", "?trace=preemption&step=21&view=scheduler"),
    Shot("kv-memory", "?trace=eviction&step=17&view=kv", scheme="dark"),
    Shot("forward-pass", "?trace=mixed-batch&step=4&view=forward"),
    Shot("gallery", "?page=gallery"),
    Shot("quiz", "?page=quiz&trace=crowded&question=7&answers=------2"),
    Shot("phone", "?trace=prefix-hit&step=10", 390, 844, pixels=2),
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
    page.wait_for_selector(".board .stage, .board .situations")
    page.evaluate("document.fonts.ready")
    page.wait_for_timeout(800)  # Streamlit settles the height of the page
    page.screenshot(path=_IMAGES / f"{shot.name}.png")
    page.close()


if __name__ == "__main__":
    main()
