"""Moving about in a browser: keys, search, jumps, play, theme, the link that restores it all, a large trace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engine.cli import main
from sim.timeline import Timeline
from tests.e2e.visit import Visit
from viz.open_trace import SHIPPED
from viz.search import search

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.browser

_LIGHT, _DARK = "rgb(251, 250, 247)", "rgb(20, 23, 28)"
_BACKGROUND = "getComputedStyle(document.querySelector('.stApp')).backgroundColor"


def steps_of(trace: str, text: str) -> tuple[int, ...]:
    """The steps that a search finds."""
    steps = search(Timeline.open(SHIPPED / f"{trace}.jsonl"), text).steps
    assert steps is not None
    return steps


def test_finds_steps_with_the_keyboard(visit: Visit) -> None:
    first, second, third, *_ = steps_of("preemption", "preempted")
    page = visit.open("?trace=preemption&step=1")
    page.keyboard.press("/")
    page.keyboard.type("preempted")
    page.keyboard.press("Enter")
    visit.expect_step(first)
    page.wait_for_selector("text=match 1 of")
    page.keyboard.press("Enter")
    visit.expect_step(second)
    page.keyboard.press("Shift+Enter")
    visit.expect_step(first)
    page.keyboard.press("Escape")
    page.keyboard.press("n")
    visit.expect_step(second)
    page.keyboard.press("n")
    visit.expect_step(third)
    page.keyboard.press("N")
    visit.expect_step(second)
    assert "find=preempted" in page.url
    page.click('[data-find="close"]')
    page.wait_for_url(re.compile(r"^(?!.*find=)"))
    page.wait_for_selector(".finder", state="hidden")


def test_a_word_selects_a_request_or_a_block(visit: Visit) -> None:
    page = visit.open("?trace=preemption&step=1")
    page.keyboard.press("/")
    page.keyboard.type("r3")
    page.keyboard.press("Enter")
    visit.expect_step(next(step for step in steps_of("preemption", "r3") if step > 1))
    assert "req=3" in page.url
    page.fill("input.find", "block 7")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("block=7"))
    page.wait_for_selector('[data-detail="7"]')


def test_a_wrong_question_is_answered_in_a_sentence_where_it_was_typed(visit: Visit) -> None:
    page = visit.open("?trace=preemption&step=5")
    page.keyboard.press("/")
    page.keyboard.type("free_block < 4")
    page.keyboard.press("Enter")
    page.wait_for_selector('.finder [role="alert"]')
    assert "A question cannot name 'free_block'" in page.locator(".finder .bad").inner_text()
    visit.expect_step(5)


def test_jumps_by_key_and_by_button(visit: Visit) -> None:
    first, second, *_ = steps_of("preemption", "preempted")
    page = visit.open("?trace=preemption&step=1")
    page.keyboard.press("p")
    visit.expect_step(first)
    page.click('[data-act="jump:next preemption"]')
    visit.expect_step(second)
    page.keyboard.press("P")
    visit.expect_step(first)
    page.keyboard.press("P")
    page.wait_for_selector(f"text=Nobody is preempted before step {first}.")
    page = visit.open(f"?trace=preemption&step={second}&req=3&block=7")
    steps = steps_of("preemption", "block 7")
    before = max(step for step in steps if step < second)
    page.keyboard.press("C")
    visit.expect_step(before)
    assert page.locator(".said").inner_text().startswith("block 7 ")
    page.keyboard.press("r")
    visit.expect_step(min(step for step in steps_of("preemption", "r3") if step > before))


def test_typing_goes_on_while_the_run_plays(visit: Visit) -> None:
    page = visit.open("?trace=preemption&step=1&find=preempted")
    for _ in range(3):
        page.keyboard.press("+")
    assert page.locator(".speed output").inner_text() == "8×"
    assert page.locator('[data-speed="1"]').is_disabled()
    page.keyboard.press("Space")
    page.wait_for_selector(".board.playing")
    page.keyboard.press("/")
    page.keyboard.type("waiting > 1")
    played = int(page.locator(".board").get_attribute("data-step") or 0)
    page.wait_for_selector(f'.board:not([data-step="{played}"])')
    assert page.locator("input.find").input_value() == "waiting > 1"
    assert page.locator("input.find:focus").count() == 1


def test_play_stops_at_the_end(visit: Visit) -> None:
    last = Timeline.open(SHIPPED / "first-token.jsonl").steps[-1]
    page = visit.open(f"?trace=first-token&step={last - 2}")
    page.keyboard.press("+")
    page.keyboard.press("Space")
    visit.expect_step(last)
    page.wait_for_selector(".board:not(.playing)")
    page.keyboard.press("-")
    assert page.locator(".speed output").inner_text() == "1×"


def test_link_restores_everything(visit: Visit) -> None:
    second = steps_of("preemption", "preempted")[1]
    page = visit.open(f"?trace=preemption&step={second}&view=kv&req=1&block=3&find=preempted&theme=dark")
    visit.expect_step(second)
    assert page.locator('.tabs [aria-pressed="true"]').inner_text() == "KV memory"
    assert page.locator('[data-detail="3"]').is_visible()
    assert page.locator("input.find").input_value() == "preempted"
    assert page.locator(".finder .outcome").inner_text().startswith("match 2 of")
    page.wait_for_function(f"{_BACKGROUND} === '{_DARK}'")


def test_theme_stands_in_the_link_only_if_it_is_not_what_the_browser_wishes(visit: Visit) -> None:
    page = visit.open("?trace=first-token&step=1")
    assert page.evaluate(_BACKGROUND) == _LIGHT
    page.keyboard.press("t")
    page.wait_for_function(f"{_BACKGROUND} === '{_DARK}'")
    page.wait_for_url(re.compile("theme=dark"))
    page.click(".masthead .trace")
    page.wait_for_selector("[data-situation]")
    assert "theme=dark" in page.url, "another page keeps it"
    page.click("[data-theme]")
    page.wait_for_function(f"{_BACKGROUND} === '{_LIGHT}'")
    page.wait_for_url(re.compile(r"^(?!.*theme=)"))


def test_help_names_every_key_that_there_is(visit: Visit) -> None:
    page = visit.open("?trace=preemption&step=10&req=1&find=preempted")
    page.keyboard.press("?")
    told = page.locator("dialog.words kbd").all_inner_texts()
    keys = page.locator("[data-key]").evaluate_all("all => all.map((e) => e.dataset.key)")
    assert {"/", "n", "N", "p", "P", "r", "R", "c", "C", "t", "+"} <= set(keys)
    assert {key for key in keys if not key.isdigit()} - {"-"} <= set(told)
    page.keyboard.press("p")
    page.keyboard.press("Escape")
    assert "step=10" in page.url, "keys are quiet while the help is open"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of 200,000 events."""
    path = tmp_path_factory.mktemp("large") / "large.jsonl.zst"
    options = ["--device", "a100", "--model", "llama-3.1-8b", "--max-model-len", "512", "--max-num-seqs", "32"]
    run = ["simulate", "--workload", "synthetic:rate=30,input=64,output=96,num=950", *options, "--trace", str(path)]
    assert main([*run, "--num-gpu-blocks-override", "120"]) == 0
    return path


def test_a_large_trace_is_opened_and_moved_about_in(visit: Visit, large: Path) -> None:
    timeline = Timeline.open(large)
    assert len(timeline.events) > 200_000
    last = timeline.steps[-1]
    preempted = search(timeline, "preempted").steps
    assert preempted
    page = visit.open(f"?trace={large}&step={last}")
    page.wait_for_selector(f'.board[data-step="{last}"]')
    assert page.locator(".bar").count() <= 240
    page.wait_for_selector('.masthead .verdict, [data-act="asked:yes"]')
    page.keyboard.press("P")
    page.wait_for_selector(f'.board[data-step="{preempted[-1]}"]')
    page.keyboard.press("Home")
    page.wait_for_selector('.board[data-step="1"]')
    page.keyboard.press("ArrowRight")
    page.wait_for_selector('.board[data-step="2"]')
    page.keyboard.press("/")
    page.keyboard.type("free_blocks == 0")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=match 1 of")
    page.wait_for_selector(".bar.match")
