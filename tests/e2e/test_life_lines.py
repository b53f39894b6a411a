"""Life lines and the story of a preemption in a browser: their marks can be clicked, and lead where they say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.e2e.visit import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser


def test_lines_select_and_columns_step(browser: Browser, app_url: str) -> None:
    visit = Visit(browser, app_url)
    page = visit.open("?trace=preemption&step=21&view=life&req=3")
    page.click('[data-column="30"] i', force=True)
    visit.expect_step(30)
    page.click('.stretch[data-life="0"][data-kind="decode"]')
    page.wait_for_selector('[data-caption="0"]')
    page.wait_for_url(re.compile(r"[?&]req=0(&|$)"))
    page.click('.stretch[data-life="3"][data-kind="preempted"] >> nth=0')
    page.click('[data-gap="47"]')
    visit.expect_step(47)
    visit.context.close()
    assert visit.complaints == []


def test_the_frames_of_a_story_lead_through_it(browser: Browser, app_url: str) -> None:
    visit = Visit(browser, app_url)
    page = visit.open("?trace=preemption&step=20&view=preemption&req=3")
    for frame, step in ((2, 21), (4, 47), (1, 20)):
        page.click(f'[data-frame="{frame}"] [data-frame-step]')
        visit.expect_step(step)
        page.wait_for_selector(f'.frame.here[data-frame="{frame}"]')
    page.click('[data-other="2"]')
    visit.expect_step(35)
    page.wait_for_url(re.compile(r"[?&]req=2(&|$)"))
    page.wait_for_selector('.frame.here[data-frame="3"]')
    page.click(".frame .rule >> nth=1")
    assert "_choose_victim" in page.locator("dialog.source").inner_text()
    visit.context.close()
    assert visit.complaints == []
