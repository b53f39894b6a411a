"""What if, in a browser: asked with one click, scrubbed together, sent as a link."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.e2e.visit import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser


def test_one_click_away_from_a_step(visit: Visit) -> None:
    page = visit.open("?trace=preemption&step=22")
    page.click('[data-act="page:what-if"]')
    page.wait_for_selector(".what-if")
    visit.expect_step(22)
    page.click('.questions button:has-text("one request at a time")')
    page.wait_for_selector('[data-run="1"]')
    assert "max_num_seqs=1" in page.url
    assert page.locator('[data-run="1"][data-step="22"]').is_visible()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector('[data-run="0"][data-step="23"]')
    page.wait_for_selector('[data-run="1"][data-step="23"]')
    page.click("[data-parting]")
    step = page.locator("[data-parting]").get_attribute("data-parting")
    page.wait_for_url(re.compile(rf"[?&]step={step}(&|$)"))
    page.click('[data-act="back"]')
    page.wait_for_selector(".stage.all")


def test_the_form_asks_exactly_and_a_link_asks_again(visit: Visit) -> None:
    page = visit.open("?page=what-if&trace=preemption")
    page.click("summary")
    page.fill('input[aria-label="num_gpu_blocks"]', "40")
    page.keyboard.press("Tab")
    page.click('button:has-text("Run it again")')
    page.wait_for_selector('[data-run="1"]')
    assert page.locator('[data-figure="preemptions"] td').all_inner_texts() == ["3", "0"]
    link = page.url.split("/")[-1]
    assert "num_gpu_blocks=40" in link
    again = visit.open(link)
    again.wait_for_selector('[data-run="1"]')
    assert again.locator('[data-figure="preemptions"] td').all_inner_texts() == ["3", "0"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_the_runs_stand_below_each_other(browser: Browser, app_url: str, scheme: str) -> None:
    phone = Visit(browser, app_url, viewport={"width": 390, "height": 844}, color_scheme=scheme)
    page = phone.open("?page=what-if&trace=preemption&step=22&fork=1&max_num_seqs=2")
    page.wait_for_selector('[data-run="1"]')
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    first, second = (page.locator(f'[data-run="{place}"]').bounding_box() for place in (0, 1))
    assert first is not None
    assert second is not None
    assert second["y"] >= first["y"] + first["height"]
    assert phone.complaints == []
    phone.context.close()
