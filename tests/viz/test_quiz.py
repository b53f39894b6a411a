"""The quiz asks what the trace has recorded, reveals nothing before it is answered, and grades by the recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.trace import events as ev
from engine.trace.file import parse_trace
from sim.timeline import StepView, Timeline
from tests.core.driver import record_crowd
from tests.viz.conftest import shipped
from tests.viz.drawn import Drawn
from tests.viz.test_app import opened
from viz.figures.guided import allowed_tokens, mask_words
from viz.figures.parts import Selection
from viz.figures.quiz import quiz, result, teaser
from viz.gallery import GALLERY
from viz.open_trace import SHIPPED
from viz.quiz.answers import Answers
from viz.quiz.course import KINDS, MOST_QUESTIONS, Asked, questions_of_run, questions_of_step
from viz.quiz.question import MOST_CHOICES
from viz.views import VIEWS

NOBODY = Selection(view="kv")


@pytest.fixture(scope="module", params=["first-token", "crowded", "crowd", "connected", "long"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    if request.param in {situation.name for situation in GALLERY}:
        return shipped(request.param)
    path = tmp_path_factory.mktemp("trace") / "run.jsonl"
    num_requests, connected = 300 if request.param == "long" else 30, request.param == "connected"
    timeline = Timeline(record_crowd(path, seed=3, num_requests=num_requests, connected=connected))
    assert timeline.summary().num_preemptions > 0
    return timeline


@pytest.fixture(scope="module")
def asked_of_steps(run: Timeline) -> list[tuple[StepView, dict[str, Asked]]]:
    """Some steps, and by title what is asked about them."""
    views = [run.step(number) for number in run.steps[:: -(-len(run.steps) // 120)]]
    return [(view, {asked.title: asked for asked in questions_of_step(view)}) for view in views]


def right_of(asked: Asked) -> str:
    return asked.question.choices[asked.question.right].words


def number_of(asked: Asked) -> int:
    """The first number of the right answer: `24 tokens`, `block 4`, `r3`."""
    return int("".join(character for character in right_of(asked) if character.isdigit()))


def first(view: StepView, kind: type[ev.Event]) -> ev.Event:
    return next(event for event in view.events if isinstance(event, kind))


# --- what is asked ----------------------------------------------------------------------------------------------


def test_every_question_has_one_right_answer_and_says_what_is_wrong_with_the_others(
    asked_of_steps: list[tuple[StepView, dict[str, Asked]]],
) -> None:
    seen = 0
    for view, questions in asked_of_steps:
        for asked in questions.values():
            question = asked.question
            assert [choice.right for choice in question.choices].count(True) == 1
            assert 2 <= len({choice.words for choice in question.choices}) == len(question.choices) <= MOST_CHOICES
            assert all(choice.why.endswith((".", "”")) for choice in question.choices)
            assert question.ask.endswith("?")
            assert question.step == view.step
            assert question.rule.place.line > 0
            assert question.view in VIEWS
            seen += 1
    assert seen > 5


def test_right_is_what_the_trace_recorded(asked_of_steps: list[tuple[StepView, dict[str, Asked]]]) -> None:
    for view, questions in asked_of_steps:
        if asked := questions.get("Tokens of a step"):
            planned = first(view, ev.StepScheduled)
            assert isinstance(planned, ev.StepScheduled)
            shares = dict(zip(planned.requests, planned.num_scheduled_tokens, strict=True))
            assert number_of(asked) == shares[asked.question.request or 0]
        if asked := questions.get("Preemption"):
            assert f"r{first(view, ev.SchedulePreempted).victim}" == right_of(asked)  # type: ignore[attr-defined]
        if asked := questions.get("Free blocks"):
            assert number_of(asked) == view.planned.pool.num_free
        if asked := questions.get("New blocks"):
            assert number_of(asked) == next(iter(view.before.pool.free_block_queue))
            assert view.planned.pool.owners[number_of(asked)] == (asked.question.request,)
        if asked := questions.get("Eviction"):
            block = number_of(asked)
            assert view.before.pool.block(block).kind == "cached"
            assert block in [b for e in view.events if isinstance(e, ev.KVAllocated) for b in e.evicted_block_ids]
        if asked := questions.get("Prefix cache"):
            lookups = [e for e in view.events if isinstance(e, ev.KVLookup) and e.request == asked.question.request]
            assert number_of(asked) == lookups[0].num_hit_tokens
        if asked := questions.get("Admission"):
            runs = asked.question.request in view.planned.running
            assert (right_of(asked) == "it runs") == runs


def test_the_crowded_trace_is_asked_of_everything() -> None:
    course = questions_of_run(shipped("crowded"))
    assert {asked.title for asked in course} == {kind.title for kind in KINDS}
    assert len(course) == MOST_QUESTIONS
    assert [asked.question.step for asked in course] == sorted(asked.question.step for asked in course)


def test_every_trace_of_the_gallery_has_something_to_ask(timeline: Timeline) -> None:
    course = questions_of_run(timeline)
    assert 3 <= len(course) <= MOST_QUESTIONS
    assert course == questions_of_run(Timeline(timeline.trace)), "the same trace asks the same"


@pytest.mark.parametrize("name", ["crowded", "spec-draft", "spec-ngram"])
def test_drafts_are_judged_as_the_engine_judged_them(name: str) -> None:
    timeline, seen = shipped(name), 0
    for number in timeline.steps:
        view = timeline.step(number)
        asked = next((a.question for a in questions_of_step(view) if a.title == "Drafts"), None)
        if asked is not None:
            verdicts = {e.request: e for e in view.events if isinstance(e, ev.SpecVerdict)}
            verdict = verdicts[asked.request or 0]
            assert asked.choices[asked.right].words.split()[0] == str(verdict.num_accepted)
            assert asked.given is not None
            assert len(asked.given.rows) == len(verdict.draft_token_ids)
            seen += 1
    assert seen > 3


@pytest.mark.parametrize("name", ["crowded", "fsm-choice", "json-schema"])
def test_only_the_right_token_is_allowed_by_the_mask(name: str) -> None:
    timeline, seen = shipped(name), 0
    ids = {timeline.step(timeline.steps[-1]).after.piece_text(i).replace("\n", "⏎"): i for i in range(2048)}
    for number in timeline.steps:
        view = timeline.step(number)
        asked = next((a.question for a in questions_of_step(view) if a.title == "Grammar"), None)
        if asked is not None:
            masks = first(view, ev.GrammarBitmaskFilled)
            assert isinstance(masks, ev.GrammarBitmaskFilled)
            words = mask_words(timeline, masks.digests[masks.requests.index(asked.request or 0)][0])
            allowed = set(allowed_tokens(words or []))
            assert [ids[choice.words[1:-1]] in allowed for choice in asked.choices] == [c.right for c in asked.choices]
            seen += 1
    assert seen > 2


# --- what is drawn ----------------------------------------------------------------------------------------------


def test_nothing_is_revealed_before_the_answer_and_everything_after_it() -> None:
    timeline = shipped("crowded")
    course = questions_of_run(timeline)
    questions = [asked.question for asked in course]
    for place, question in enumerate(questions):
        view = timeline.step(question.step)
        hidden = Drawn(quiz(view, course, place, Answers.read("", questions), NOBODY))
        assert [element["data-key"] for element in hidden.all(data_choice=None)] == list(
            "1234"[: len(question.choices)]
        )
        assert not hidden.all(data_state="right")
        assert not any(choice.why in hidden.text for choice in question.choices)
        for choice in range(len(question.choices)):
            answers = Answers.read("-" * place + str(choice + 1), questions)
            shown = Drawn(quiz(view, course, place, answers, NOBODY))
            assert int(shown.one(data_state="right")["data-choice"]) == question.right
            assert shown.one(data_verdict=None)["data-verdict"] == ("right" if choice == question.right else "wrong")
            assert shown.one(data_source=str(question.rule.place))
            assert question.rule.statement in shown.text


@pytest.mark.parametrize("name", ["preemption", "crowded", "eviction"])
def test_nothing_is_marked_before_the_answer(name: str) -> None:
    course = questions_of_run(shipped(name))
    victims = [number for number, asked in enumerate(course, 1) if asked.title in ("Preemption", "Eviction")]
    assert victims
    for number in victims:
        hidden = Drawn(opened(page="quiz", trace=name, question=number)["parts"]["stage"])
        assert not [element for element in hidden.elements if "selected" in element.classes]
        answers = "-" * (number - 1) + "1"
        shown = Drawn(opened(page="quiz", trace=name, question=number, answers=answers)["parts"]["stage"])
        assert [element for element in shown.elements if "selected" in element.classes]


def test_the_state_that_is_shown_is_the_one_before_the_step() -> None:
    timeline = shipped("crowded")
    course = questions_of_run(timeline)
    answers = Answers.read("", [asked.question for asked in course])
    drawn_pools = 0
    for place, asked in enumerate(course):
        view = timeline.step(asked.question.step)
        drawn = Drawn(quiz(view, course, place, answers, NOBODY))
        if "queues" in asked.question.sights:
            assert drawn.numbers("data_queued") == [*view.before.running, *view.before.waiting]
        if "pool" in asked.question.sights:
            states = [element["data-state"] for element in drawn.all(data_refs=None)]
            assert states == [block.kind for block in view.before.pool.blocks()]
            drawn_pools += 1
    assert drawn_pools > 3


def test_the_score_counts_right_answers() -> None:
    course = questions_of_run(shipped("crowded"))
    questions = [asked.question for asked in course]
    perfect = Answers(tuple(question.right for question in questions))
    assert Drawn(result(course, perfect)).one(data_result=len(course))
    first_only = Answers.read(str(perfect)[:1], questions)
    assert first_only.verdicts(questions) == [True, *[None] * (len(course) - 1)]
    assert "1 of 1 right" in Drawn(quiz(shipped("crowded").step(1), course, 0, first_only, NOBODY)).text


def test_answers_are_read_as_they_are_written_and_the_first_stands() -> None:
    questions = [asked.question for asked in questions_of_run(shipped("crowded"))]
    answers = Answers.read("1-2", questions)
    assert str(answers) == "1-2"
    assert str(answers.answer(1, 0)) == "112"
    assert answers.answer(0, 2) == answers
    assert Answers.read("x9²\0" * 100, questions) == Answers.read("", questions)


# --- the page ---------------------------------------------------------------------------------------------------


def test_the_page_asks_about_the_run_or_about_one_step() -> None:
    of_run = Drawn(opened(page="quiz", trace="crowded")["parts"]["stage"])
    assert len(of_run.all(data_mark=None)) == MOST_QUESTIONS
    of_step = Drawn(opened(page="quiz", trace="crowded", step=12)["parts"]["stage"])
    assert of_step.one(data_question=12)
    parts = opened(page="quiz", trace="crowded", step=999)["parts"]
    assert "Step 999 has nothing to ask" in Drawn(parts["header"]).text
    assert len(Drawn(parts["stage"]).all(data_mark=None)) == MOST_QUESTIONS


@pytest.mark.parametrize("number", ["0", "-3", "99", "x", "9" * 400])
def test_a_question_that_there_is_not_leads_to_the_nearest(number: str) -> None:
    assert Drawn(opened(page="quiz", trace="crowded", question=number, answers="zz")["parts"]["stage"]).text


def test_a_trace_without_a_planned_step_says_that_it_has_nothing_to_ask(tmp_path: Path) -> None:
    lines = (SHIPPED / "first-token.jsonl").read_bytes().splitlines(keepends=True)
    path = tmp_path / "short.jsonl"
    path.write_bytes(b"".join(lines[: next(i for i, line in enumerate(lines) if b"step.scheduled" in line)]))
    assert questions_of_run(Timeline(parse_trace(path.read_bytes(), path.name))) == []
    assert "nothing to ask" in Drawn(opened(page="quiz", trace=str(path))["parts"]["header"]).text


def test_beneath_a_step_stands_a_question_about_the_next() -> None:
    data = opened(trace="crowded", step=11)
    drawn = Drawn(data["parts"]["stage"])
    offered = questions_of_step(shipped("crowded").step(12))[0]
    assert len(drawn.all(data_offer=None)) == len(offered.question.choices)
    assert "step 12" in Drawn(teaser(offered)).text
    last = shipped("crowded").steps[-1]
    assert not Drawn(opened(trace="crowded", step=last)["parts"]["stage"]).all(data_teaser=None)
