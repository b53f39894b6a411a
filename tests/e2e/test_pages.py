"""Every page on a desk and on a phone, in light and in dark: it fits, says something, and complains of nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import pytest

from tests.e2e.visit import Visit
from viz.address import Page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

PAGES = {
    "step": "?trace=crowded&step=12",
    "gallery": "?page=gallery",
    "live": "?page=live",
    "quiz": "?page=quiz&trace=crowded",
    "what-if": "?page=what-if&trace=crowded&step=12&fork=1&max_num_seqs=2",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 800), (390, 844)], ids=["desk", "phone"])
def test_it_fits_and_complains_of_nothing(browser: Browser, app_url: str, size: tuple[int, int], scheme: str) -> None:
    width, height = size
    visit = Visit(browser, app_url, viewport={"width": width, "height": height}, color_scheme=scheme)
    for name, address in PAGES.items():
        page = visit.open(address)
        page.wait_for_selector(".board .panel, .board .situations, form, [data-testid=stForm]")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert len(page.locator(".board").inner_text()) > 20, name
        background = page.evaluate("getComputedStyle(document.querySelector('.stApp')).backgroundColor")
        red = int(background.split("(")[1].split(",")[0])
        assert (red < 128) == (scheme == "dark"), name
    assert visit.complaints == []
    visit.context.close()


def test_every_page_is_opened_here() -> None:
    assert set(PAGES) == set(get_args(Page))
