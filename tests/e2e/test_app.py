"""The app in a browser: step, follow a link, run the engine, on a desk and on a phone, in light and in dark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engine.trace.file import read_trace
from sim.timeline import Timeline
from tests.e2e.visit import DESK, Visit
from viz.gallery import GALLERY
from viz.open_trace import SHIPPED
from viz.views import VIEWS

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

_PHONE = {"width": 390, "height": 844}
_LAST = Timeline(read_trace(SHIPPED / "prefix-hit.jsonl")).steps[-1]


def test_opens_on_something_worth_seeing(visit: Visit) -> None:
    page = visit.open()
    assert page.locator(".verdict").inner_text().endswith("0 divergences")
    for panel in ("scheduler", "kv", "why", "forward"):
        assert page.locator(f'[data-panel="{panel}"]').is_visible()
    assert page.evaluate("document.title") == "Orrery"


def test_steps_by_button_key_bar_and_number(visit: Visit) -> None:
    page = visit.open("?trace=prefix-hit&step=10")
    page.click('[data-go="1"]')
    visit.expect_step(11)
    page.keyboard.press("ArrowLeft")
    visit.expect_step(10)
    page.keyboard.press("End")
    visit.expect_step(_LAST)
    page.keyboard.press("Home")
    visit.expect_step(1)
    page.click('.bar[data-step="20"]')
    visit.expect_step(20)
    page.fill("input.jump", "10")
    page.keyboard.press("Enter")
    visit.expect_step(10)
    page.go_back()
    visit.expect_step(20)
    page.keyboard.press("Space")
    visit.expect_step(22)
    page.keyboard.press("Space")


def test_link_restores_trace_step_view_and_selection(visit: Visit) -> None:
    page = visit.open("?trace=prefix-hit&step=10&view=kv&req=0&block=2")
    visit.expect_step(10)
    assert page.locator('.tabs [aria-pressed="true"]').inner_text() == "KV memory"
    assert page.locator('[data-table="0"]').is_visible()
    assert page.locator('[data-detail="2"] b').inner_text() == "Block 2"
    page.click('.board [data-block="10"].block')
    page.wait_for_url(re.compile("block=10"))
    page.wait_for_selector('[data-detail="10"]')
    page.keyboard.press("4")
    page.wait_for_selector(".stage.forward")
    assert "view=forward" in page.url


def test_gallery_opens_a_trace_where_it_matters(visit: Visit) -> None:
    page = visit.open("?page=gallery")
    assert page.locator("[data-situation]").count() == len(GALLERY)
    page.click('[data-situation="preemption"]')
    page.wait_for_selector("[data-preempted]")
    assert "trace=preemption" in page.url


def test_help_explains_words_and_keys(visit: Visit) -> None:
    page = visit.open()
    page.keyboard.press("?")
    assert "A piece of memory" in page.locator("dialog.words").inner_text()
    page.keyboard.press("Escape")
    assert not page.locator("dialog.words").is_visible()


def test_bad_addresses_are_answered_in_a_sentence(visit: Visit) -> None:
    page = visit.open("?trace=prefix-hit&step=999")
    assert f"There is no step 999: this trace holds steps 1 to {_LAST}." in page.locator(".notice").inner_text()
    page = visit.open("?trace=nowhere.jsonl")
    assert "nowhere.jsonl cannot be read" in page.locator(".notice.error").inner_text()


def test_live_run_grows_and_can_be_stepped_through(visit: Visit) -> None:
    page = visit.open("?page=live")
    page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_selector(".bar.now")
    page.wait_for_selector('.bar[data-step="4"]')  # it grows while we look
    page.keyboard.press("Home")
    visit.expect_step(1)
    page.keyboard.press("ArrowRight")
    visit.expect_step(2)
    page.click('[data-act="live:follow"]')
    page.wait_for_selector('.board:not([data-step="2"])')
    page.click('[data-act="live:stop"]')
    page.get_by_role("button", name="Save the trace").wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save the trace").click()
    assert download.value.path().read_bytes().startswith(b'{"type":"header"')
    page.get_by_role("button", name="Give it an address").click()
    page.wait_for_url(re.compile("trace="))
    page.wait_for_selector(".verdict.good")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_looks_right_on_a_phone_in_light_and_dark(browser: Browser, app_url: str, scheme: str) -> None:
    visit = Visit(browser, app_url, viewport=_PHONE, color_scheme=scheme, device_scale_factor=2, has_touch=True)
    page = visit.open("?trace=prefix-hit&step=10&block=2")
    page.wait_for_selector(".board .stage")
    assert page.evaluate("document.documentElement.scrollWidth") <= _PHONE["width"]
    smallest = page.evaluate(_SMALLEST_TEXT)
    assert smallest["size"] >= 11, smallest
    background = page.evaluate("getComputedStyle(document.querySelector('.stApp')).backgroundColor")
    assert background == {"light": "rgb(251, 250, 247)", "dark": "rgb(20, 23, 28)"}[scheme]
    visit.context.close()
    assert visit.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, _PHONE], ids=["desk", "phone"])
def test_every_view_has_its_tab_and_fits_the_screen(
    browser: Browser, app_url: str, size: dict[str, int], scheme: str
) -> None:
    visit = Visit(browser, app_url, viewport=size, color_scheme=scheme)
    page = visit.open("?trace=spec-draft&step=4")
    for name, view in VIEWS.items():
        page.click(f'.views [data-act="view:{name}"]')
        page.wait_for_selector(f".stage.{name}")
        page.wait_for_url(re.compile(rf"[?&]view={name}(&|$)"))
        assert page.locator('.views [aria-pressed="true"]').inner_text() == view.title
        assert page.locator(".stage [data-panel]").count() == len(view.panels)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], name
        assert page.evaluate(_SMALLEST_TEXT)["size"] >= 11, name
    visit.context.close()
    assert visit.complaints == []


_SMALLEST_TEXT = """() => {
  let smallest = {size: 99, text: ""};
  const root = [...document.querySelectorAll("*")].map((e) => e.shadowRoot).find((r) => r?.querySelector(".board"));
  for (const element of root.querySelectorAll(".board *")) {
    const words = [...element.childNodes].filter((n) => n.nodeType === 3 && n.textContent.trim());
    const size = parseFloat(getComputedStyle(element).fontSize);
    if (words.length && element.offsetParent && size < smallest.size) smallest = {size, text: words[0].textContent};
  }
  return smallest;
}"""


_CLIPPED = """() => {
  const root = [...document.querySelectorAll("*")].map((e) => e.shadowRoot).find((r) => r?.querySelector(".board"));
  const board = root.querySelector(".board"), width = document.documentElement.clientWidth, found = [];
  const walker = document.createTreeWalker(board, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const element = text.parentElement;
    if (!text.textContent.trim() || !element.checkVisibility({ contentVisibilityAuto: true })) continue;
    const range = document.createRange();
    range.selectNodeContents(text);
    const box = range.getBoundingClientRect();
    for (let around = element; around !== board; around = around.parentElement) {
      const style = getComputedStyle(around), edge = around.getBoundingClientRect();
      if (/auto|scroll/.test(style.overflowX + style.overflowY)) break;  // it can be scrolled to
      if (style.webkitLineClamp !== "none" || style.textOverflow === "ellipsis") break;  // an ellipsis says it
      const wide = box.right > edge.right + 1.5 || box.left < edge.left - 1.5;
      const tall = box.bottom > edge.bottom + 2.5 || box.top < edge.top - 2.5;
      if (/hidden|clip/.test(style.overflowX) && (wide || tall)) found.push(text.textContent);
      if (around.parentElement === board && (box.right > width + 1 || box.left < -1)) found.push(text.textContent);
    }
  }
  return found;
}"""


@pytest.mark.parametrize("size", [DESK, _PHONE], ids=["desk", "phone"])
def test_no_text_is_cut_or_beside_the_screen(browser: Browser, app_url: str, size: dict[str, int]) -> None:
    visit = Visit(browser, app_url, viewport=size)
    page = visit.open("?trace=crowded&step=10&req=1&block=3")
    for name in VIEWS:
        page.click(f'.views [data-act="view:{name}"]')
        page.wait_for_selector(f".stage.{name}")
        assert page.evaluate(_CLIPPED) == [], name
    visit.context.close()
    assert visit.complaints == []


@pytest.mark.parametrize("address", ["?page=", "?trace=", "?trace=prefix-hit&step=", "?trace=prefix-hit&find="])
def test_what_is_long_in_an_address_does_not_widen_the_page(browser: Browser, app_url: str, address: str) -> None:
    visit = Visit(browser, app_url, viewport=_PHONE)
    page = visit.open(address + "x" * 3000)
    page.wait_for_selector(".board [data-part=stage] *")
    assert page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth") <= _PHONE["width"]
    assert page.evaluate(_CLIPPED) == []
    visit.context.close()


def test_an_uploaded_trace_has_an_address_also_if_it_is_impossible(visit: Visit) -> None:
    lines = (SHIPPED / "prefix-hit.jsonl").read_bytes().splitlines(keepends=True)
    late = [line for line in lines if b'"request.added"' not in line]
    page = visit.open("?page=gallery")
    page.set_input_files("input[type=file]", {"name": "ü.jsonl", "mimeType": "", "buffer": b"".join(late)})
    page.wait_for_selector('[data-panel="undrawn"]')
    assert "no request r0 has been added" in page.locator('[data-panel="undrawn"]').inner_text()
    page.click('[data-act="view:events"]')
    page.wait_for_selector("[data-event]")
    assert "trace=" in page.url


def test_a_file_that_vanishes_while_it_is_shown_is_said(visit: Visit, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes((SHIPPED / "prefix-hit.jsonl").read_bytes())
    page = visit.open(f"?trace={path}&step=3")
    page.wait_for_selector(".bar.now")
    path.unlink()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".notice.error")
    assert "run.jsonl cannot be read" in page.locator(".notice.error").inner_text()
