"""A visit to the app in a browser, at a desk unless it is said otherwise."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DESK = {"width": 1280, "height": 800}


class Visit:
    """A page, and everything it complained about."""

    def __init__(self, browser: Browser, url: str, **context: Any) -> None:
        self.context = browser.new_context(**({"viewport": DESK} | context))
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.url = url
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)

    def open(self, query: str = "") -> Page:
        """Load an address and wait until it is drawn."""
        self.page.goto(f"{self.url}/{query}")
        self.page.wait_for_selector(".masthead")
        return self.page

    def expect_step(self, step: int) -> None:
        """Wait until a step is drawn: address, cursor and field agree on it."""
        self.page.wait_for_selector(f'.board[data-step="{step}"]')
        self.page.wait_for_url(re.compile(rf"[?&]step={step}(&|$)"))
        self.page.wait_for_selector(f'.bar.now[data-step="{step}"]')
        assert self.page.locator("input.jump").input_value() == str(step)
