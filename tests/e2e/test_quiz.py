"""The quiz in a browser: answer with the keyboard, see the step, come back, and from a step to a question."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.e2e.visit import Visit
from tests.viz.conftest import shipped
from viz.quiz.course import questions_of_run, questions_of_step

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

_COURSE = [asked.question for asked in questions_of_run(shipped("crowded"))]
_RIGHT = "".join(str(question.right + 1) for question in _COURSE)


def test_a_quiz_is_answered_with_the_keyboard(visit: Visit) -> None:
    begun = len(_COURSE) - 3  # the last three, as a link that somebody has sent
    page = visit.open(f"?page=quiz&trace=crowded&question={begun + 1}&answers={_RIGHT[:begun]}")
    for number, question in enumerate(_COURSE[begun:], begun + 1):
        page.wait_for_selector(f'[data-question="{question.step}"]:not([data-revealed])')
        page.keyboard.press(str(question.right + 1))
        page.wait_for_selector('[data-verdict="right"]')
        page.wait_for_url(re.compile(f"answers={_RIGHT[:number]}(&|$)"))
        assert question.rule.statement in page.locator(".quiz-rule").inner_text()
        page.keyboard.press("Enter")
    page.wait_for_selector(f'[data-result="{len(_COURSE)}"]')


def test_see_it_opens_the_step_and_back_returns_to_the_answer(visit: Visit) -> None:
    wrong = next(place for place in range(1, 5) if str(place) != _RIGHT[1])
    page = visit.open("?page=quiz&trace=crowded&question=2")
    page.click(f'[data-choice="{wrong - 1}"]')
    page.wait_for_selector('[data-verdict="wrong"]')
    page.click(".quiz-rule [data-code]")
    assert _COURSE[1].rule.place.symbol in page.locator("dialog.source").inner_text()
    page.keyboard.press("Escape")
    page.click('[data-act="see:it"]')
    visit.expect_step(_COURSE[1].step)
    assert f"view={_COURSE[1].view}" in page.url
    page.go_back()
    page.wait_for_selector('[data-verdict="wrong"]')
    assert page.locator(".quiz-score").inner_text() == "0 of 1 right"


def test_the_question_beneath_a_step_is_revealed_in_the_quiz(visit: Visit) -> None:
    asked = questions_of_step(shipped("crowded").step(12))[0].question
    page = visit.open("?trace=crowded&step=11")
    page.click(f'[data-offer="{asked.right}"]')
    page.wait_for_selector('[data-question="12"] [data-verdict="right"]')
    page.click('[data-act="page:step"]')
    page.wait_for_selector(".bar.now")
    page.click('[data-act="page:quiz"]')
    page.wait_for_selector(f'[data-question="{_COURSE[0].step}"]')
    assert "trace=crowded" in page.url


@pytest.mark.parametrize(("scheme", "turn"), [("light", 0), ("dark", 1)])
def test_every_question_fits_a_phone(browser: Browser, app_url: str, scheme: str, turn: int) -> None:
    visit = Visit(browser, app_url, viewport={"width": 390, "height": 844}, color_scheme=scheme)
    for number, question in list(enumerate(_COURSE, 1))[turn::2]:
        page = visit.open(f"?page=quiz&trace=crowded&question={number}&answers={_RIGHT}")
        page.wait_for_selector(f'[data-question="{question.step}"][data-revealed]')
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, number
    visit.context.close()
    assert visit.complaints == []
