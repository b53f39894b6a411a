"""Predict, then reveal: a question about a step, what is known before it, and once answered the reason and the rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from sim.request_state import RequestState
from sim.state import State
from sim.timeline import StepView
from viz.explain import WAITS_FOR
from viz.figures.block import detail
from viz.figures.block_changes import BlockChanges
from viz.figures.block_pool import block_pool
from viz.figures.block_table import block_tables
from viz.figures.code import code
from viz.figures.free_block_queue import free_block_queue
from viz.figures.guided_automaton import automaton_figure
from viz.figures.html import Html, el, join
from viz.figures.parts import Selection, chip, count, empty, label, panel
from viz.quiz.answers import Answers
from viz.quiz.course import Asked
from viz.quiz.question import Choice, Question, Sight, Table
from viz.theme import request_class

#: Requests drawn of each queue.
_ROWS = 10
_REQUEST = re.compile(r"\br(\d+)\b")


def quiz(view: StepView, course: Sequence[Asked], place: int, answers: Answers, selection: Selection) -> Html:
    """Draw one question of several.

    Args:
        view: the step that it is about.
        course: all questions.
        place: which of them, from 0.
        answers: given so far; the question is revealed once it has its answer.
        selection: what is marked in the figures.
    """
    asked = course[place]
    return el(
        "div",
        "stage quiz",
        _card(asked, answers.chosen[place], _progress(course, place, answers), last=place + 1 == len(course)),
        *_sights(asked.question, view, selection),
    )


# --- the question -----------------------------------------------------------------------------------------------


def _card(asked: Asked, chosen: int | None, progress: Html, *, last: bool) -> Html:
    question = asked.question
    return el(
        "section",
        "panel question-card",
        el(
            "header",
            "",
            el("p", "quiz-topic", f"{asked.title} · step {question.step} is about to be planned"),
            progress,
        ),
        el("h2", "quiz-ask", _with_chips(question.ask)),
        _table(question.given) if question.given else None,
        el("div", "quiz-choices", *(_choice(choice, place, chosen) for place, choice in enumerate(question.choices))),
        _hint(question) if chosen is None else _reveal(question, chosen, last=last),
        data_question=question.step,
        data_revealed=chosen is not None,
    )


def _with_chips(text: str) -> Html:
    """Names of requests in their colour."""
    parts = _REQUEST.split(text)
    named = (_name(int(part)) if place % 2 else part for place, part in enumerate(parts))
    return join(named)


def _name(serial: int) -> Html:
    return el("span", f"chip {request_class(serial)}", f"r{serial}")


def _table(table: Table) -> Html:
    head = el("tr", "", *(el("th", "", name) for name in table.names))
    rows = (el("tr", "", *(el("td", "", value) for value in row)) for row in table.rows)
    return el("table", "quiz-given", el("thead", "", head), el("tbody", "", *rows))


def _choice(choice: Choice, place: int, chosen: int | None) -> Html:
    words = el("span", "quiz-words", _with_chips(choice.words))
    key = el("kbd", "", place + 1)
    if chosen is None:
        return el(
            "button", "quiz-choice", key, words, data_act=f"answer:{place}", data_key=place + 1, data_choice=place
        )
    state = "right" if choice.right else "wrong" if place == chosen else "other"
    sign = {"right": "✓", "wrong": "✗"}.get(state, "")
    said = el("span", "quiz-yours", "your answer") if place == chosen else None
    why, mark = el("p", "", _with_chips(choice.why)), el("kbd", "", sign or place + 1)
    return el("div", f"quiz-choice {state}", mark, words, said, why, data_choice=place, data_state=state)


def _hint(question: Question) -> Html:
    where = "at the state below" if question.sights else "at the numbers above"
    return el("p", "more", f"Look {where}, then choose: by a click, or with the keys 1 to {len(question.choices)}.")


def _reveal(question: Question, chosen: int, *, last: bool) -> Html:
    right, place = question.choices[chosen].right, question.rule.place
    verdict = el("b", "good" if right else "bad", "✓ Right." if right else "✗ Not so.")
    where = el("button", "because", el("span", "place", f"{place.symbol} · {place}"), data_code=str(place))
    rule = el("p", "quiz-rule", verdict, " ", el("em", "", "The rule: "), question.rule.statement, where)
    forward = "See the result" if last else "Next question"
    buttons = el(
        "div",
        "quiz-buttons",
        el("button", "action", f"See it in step {question.step}", data_act="see:it"),
        el("button", "action main", forward, el("kbd", "", "⏎"), data_act="next:question", data_key="Enter"),
    )
    return el("div", "quiz-reveal", rule, buttons, code(question.rule), data_verdict="right" if right else "wrong")


def _progress(course: Sequence[Asked], place: int, answers: Answers) -> Html:
    """One dot per question, and the score."""
    verdicts = answers.verdicts([asked.question for asked in course])
    dots = [
        el(
            "button",
            f"quiz-mark {_MARKS[verdict]}" + (" now" if number == place else ""),
            number + 1,
            data_act=f"question:{number + 1}",
            data_mark=number,
            data_tip=f"{course[number].title}, step {course[number].question.step}",
        )
        for number, verdict in enumerate(verdicts)
    ]
    return el(
        "div", "quiz-progress", *dots, el("span", "quiz-score", _score(verdicts)), data_right=verdicts.count(True)
    )


_MARKS = {None: "open", True: "right", False: "wrong"}


def _score(verdicts: Sequence[bool | None]) -> str:
    num_answered = len(verdicts) - verdicts.count(None)
    return f"{verdicts.count(True)} of {num_answered} right" if num_answered else "predict, then reveal"


# --- what is known ----------------------------------------------------------------------------------------------


def _sights(question: Question, view: StepView, selection: Selection) -> list[Html]:
    """The state in which the step was asked for, so that nothing of what it decides is to be seen."""
    drawn: dict[Sight, Callable[[], Html]] = {
        "queues": lambda: _queues(view.before, selection),
        "pool": lambda: _pool(view.before, selection),
        "automaton": lambda: _automaton(view.before, question),
    }
    return [drawn[sight]() for sight in question.sights]


def _pool(state: State, selection: Selection) -> Html:
    counts = state.pool.counts()
    held = counts["in use"] + counts["shared"]
    return panel(
        "kv",
        "KV memory before the step",
        f"{held:,} blocks in use, {counts['cached']:,} free and still cached, {counts['free']:,} empty; "
        f"a block holds {count(state.block_size, 'token')}",
        block_pool(state, selection, _UNCHANGED, alone=False),
        free_block_queue(state, selection),
        block_tables(state, selection),
        detail(state, selection),
    )


#: Of a step that has not been planned.
_UNCHANGED = BlockChanges([], [], [], [], [])


def _queues(state: State, selection: Selection) -> Html:
    return panel(
        "queues",
        "The queues before the step",
        "what each request has computed, and what it has left",
        label("running, in the order in which the step looks at them"),
        _queue([state.requests[serial] for serial in state.running], state, selection),
        label("waiting, in the order in which they are admitted"),
        _queue([state.requests[serial] for serial in state.waiting], state, selection),
        _limits(state),
    )


def _queue(requests: Sequence[RequestState], state: State, selection: Selection) -> Html:
    if not requests:
        return empty("Nobody.")
    rows = [_row(request, state, selection) for request in requests[:_ROWS]]
    if len(requests) > _ROWS:
        rows.append(el("div", "more", f"… {len(requests) - _ROWS:,} more"))
    return el("div", "rows", *rows)


def _row(request: RequestState, state: State, selection: Selection) -> Html:
    left, done = request.num_tokens - request.num_computed_tokens, request.num_computed_tokens / request.num_tokens
    notes = [f"{request.num_computed_tokens:,} of {count(request.num_tokens, 'token')} computed"]
    notes += [f"priority {request.priority}"] if state.policy == "priority" else []
    notes += [WAITS_FOR[request.status]] if request.status in WAITS_FOR else []
    drafts = f" and {count(len(request.draft_token_ids), 'draft')}" if request.draft_token_ids else ""
    running = request.serial in state.running
    return el(
        "div",
        f"row {request_class(request.serial)}",
        chip(request.serial, hollow=not running, selected=request.serial == selection.request),
        el("span", "quiz-left", f"{left:,}{drafts} to compute"),
        el("span", "wanted", el("i", "", style=f"width:{100 * done:.0f}%")),
        el("span", "note", " · ".join(notes)),
        data_queued=request.serial,
        data_left=left,
    )


def _limits(state: State) -> Html:
    limits = state.scheduler
    facts = [
        ("budget of a step", count(limits.max_num_batched_tokens, "token")),
        ("seats", f"{len(state.running):,} of {limits.max_num_seqs:,} taken"),
        ("free_block_queue", count(state.pool.num_free, "block")),
    ]
    if limits.long_prefill_token_threshold:
        facts.append(("most of one request", count(limits.long_prefill_token_threshold, "token")))
    order = "by priority, the lowest number first" if limits.policy == "priority" else "first come, first served"
    facts.append(("order", order))
    return el("dl", "quiz-limits", *(el("div", "", el("dt", "", name), el("dd", "", value)) for name, value in facts))


def _automaton(state: State, question: Question) -> Html:
    assert question.request is not None
    request = state.requests[question.request]
    assert request.automaton is not None
    subtitle = "each arrow reads a character, and the lit state is where the output stands: a token may follow if"
    return panel(
        "guided",
        "The grammar before the step",
        f"{subtitle} there is a way for all of its characters",
        automaton_figure(request.automaton, request.automaton_state, []),
    )


# --- beneath a step ---------------------------------------------------------------------------------------------


def teaser(asked: Asked) -> Html:
    """Draw a question about the step that comes next; an answer leads to the quiz, which reveals it."""
    question = asked.question
    offered = (
        el("button", "quiz-offer", _with_chips(choice.words), data_act=f"predict:{place}", data_offer=place)
        for place, choice in enumerate(question.choices)
    )
    words = el(
        "div",
        "",
        el("p", "quiz-topic", f"Predict, then reveal: step {question.step}"),
        el("p", "quiz-next", _with_chips(question.ask)),
    )
    return el("section", "panel question-card teaser", words, el("div", "quiz-offers", *offered), data_teaser=True)


# --- the result -------------------------------------------------------------------------------------------------


def result(course: Sequence[Asked], answers: Answers) -> Html:
    """Draw how it went: every question with its verdict, to be looked at again."""
    verdicts = answers.verdicts([asked.question for asked in course])
    lines = [
        el(
            "button",
            f"quiz-line {_MARKS[verdict]}",
            el("b", "", {True: "✓", False: "✗"}.get(verdict, "–") if verdict is not None else "–"),
            el("span", "quiz-topic", asked.title),
            el("span", "", _with_chips(asked.question.ask)),
            data_act=f"question:{number + 1}",
            data_line=number,
        )
        for number, (asked, verdict) in enumerate(zip(course, verdicts, strict=True))
    ]
    buttons = el(
        "div",
        "quiz-buttons",
        el("button", "action", "Once more", data_act="again:all"),
        el("button", "action main", "Another trace", el("kbd", "", "⏎"), data_act="page:gallery", data_key="Enter"),
    )
    right = verdicts.count(True)
    title = el("h2", "quiz-ask", f"{right} of {count(len(course), 'question')} right")
    words = el("p", "sub", "Open a question again to see why, and the step in which it was decided.")
    card = el(
        "section", "panel question-card", title, words, el("div", "quiz-lines", *lines), buttons, data_result=right
    )
    return el("div", "stage quiz", card)
