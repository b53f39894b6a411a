"""Reasons, checks and raw events in a browser: a person who asks gets the answer by clicking."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.e2e.visit import Visit
from viz.open_trace import SHIPPED

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser


def test_a_click_on_one_who_waits_says_why_and_shows_the_code(browser: Browser, app_url: str) -> None:
    visit = Visit(browser, app_url)
    page = visit.open("?trace=crowded&step=12")
    page.click('[data-waiting="2"] .chip')
    answer = page.locator('[data-answer="2"]')
    answer.wait_for()
    assert "Because a step that preempts admits nobody, and r3 gave way" in answer.inner_text()
    answer.locator(".because").click()
    code = page.locator("dialog.source").inner_text()
    assert "_admission_limit" in code
    assert "Nobody is admitted in a step that preempted" in code
    page.keyboard.press("Escape")
    answer.locator(".link").click()
    visit.expect_step(9)
    page.click(".bookkeeping summary >> nth=0")
    assert page.locator(".bookkeeping .because >> nth=0").is_visible()
    visit.context.close()
    assert visit.complaints == []


def test_a_broken_trace_leads_to_the_step_that_breaks_it(browser: Browser, app_url: str, tmp_path: Path) -> None:
    content = (SHIPPED / "preemption.jsonl").read_text()
    (tmp_path / "edited.jsonl").write_text(content.replace('"needed":1,"available":0', '"needed":1,"available":9', 1))
    visit = Visit(browser, app_url)
    page = visit.open(f"?trace={tmp_path / 'edited.jsonl'}&step=5&view=checks")
    assert "available" in page.locator("[data-differs-here]").inner_text()
    assert "holds up to here" in page.locator('[data-invariant="victims"]').inner_text()
    page.click('[data-violation="victims"] .link')
    visit.expect_step(21)
    page.wait_for_selector('[data-invariant="victims"][data-state-of-rule="broken"]')
    visit.context.close()
    assert visit.complaints == []


def test_raw_events_are_chosen_and_opened_by_a_link(browser: Browser, app_url: str) -> None:
    visit = Visit(browser, app_url)
    page = visit.open("?trace=preemption&step=21&view=events&req=3")
    page.click('[data-only="kv.freed"]')
    page.wait_for_url(re.compile(r"only=kv\.freed"))
    page.wait_for_selector('[data-only="kv.freed"][aria-pressed="true"]')
    assert page.locator("[data-event]").count() == 1
    page.click("[data-event] .facts-of")
    page.wait_for_url(re.compile("event="))
    page.wait_for_selector("[data-opened]")
    page.click("text=the exact line of the trace")
    assert '"type":"kv.freed"' in page.locator("[data-opened] pre").inner_text()
    page.reload()
    page.wait_for_selector("[data-opened]")
    page.click('[data-only="r3"]')
    page.wait_for_selector('[data-only="r3"][aria-pressed="true"]')
    page.wait_for_selector('[data-event][data-type="schedule.preempted"]')
    page.click('[data-only="none"]')
    page.wait_for_selector('[data-event][data-type="schedule.called"]')
    visit.context.close()
    assert visit.complaints == []
