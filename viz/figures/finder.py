"""The finder: buttons that jump to what matters, and the field in which a person says what to look for."""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal

from sim.query.names import NAMES
from sim.timeline import Timeline
from viz.figures.html import Child, Html, el
from viz.figures.parts import Selection, chip, count
from viz.search import Search
from viz.theme import request_class

_EXAMPLES = ("preempted", "free_blocks < 4", "hit > 0", "r1", "block 3", 'request == "r1" and phase == "prefill"')


def jumps(timeline: Timeline, selection: Selection) -> Html:
    """Draw the buttons: search, jumps from one step to another that is like it, speed of playing."""
    preemptions = timeline.summary().num_preemptions
    serial = selection.request if selection.request in timeline.life_lines else None
    changing: Child = "block " + str(selection.block) if selection.block is not None else None
    if changing is None and serial is not None:
        changing = el("b", f"name {request_class(serial)}", f"r{serial}")
    tip = "find a step, a request or a block (/)"
    search = el("button", "search", "⌕ find ", el("kbd", "", "/"), data_find="open", data_key="/", data_tip=tip)
    pairs = [
        _pair("preemption", "p", el("span", "", el("s", "preemption", "▼"), " preempted"), "a request is preempted")
        if preemptions
        else None,
        _pair("scheduled", "r", el("span", "", chip(serial), " runs"), f"r{serial} gets tokens")
        if serial is not None
        else None,
        _pair("change", "c", el("span", "", changing, " changes"), "something happens to it")
        if changing is not None
        else None,
    ]
    return el("div", "jumps", search, *pairs, _speed())


def _pair(goal: str, key: str, words: Html, what: str) -> Html:
    """Two buttons: to the step before in which it is so, and to the next."""
    return el(
        "span",
        "pair",
        _arrow("previous", goal, key.upper(), f"the last step before in which {what}"),
        words,
        _arrow("next", goal, key, f"the next step in which {what}"),
        role="group",
    )


def _arrow(direction: Literal["previous", "next"], goal: str, key: str, words: str) -> Html:
    sign = "‹" if direction == "previous" else "›"
    tip = f"{words} ({key})"
    return el("button", "", sign, data_act=f"jump:{direction} {goal}", data_key=key, data_tip=tip, aria_label=tip)


def _speed() -> Html:
    return el(
        "span",
        "pair speed",
        el("em", "", "speed"),
        el("button", "", "−", data_speed=-1, data_key="-", data_tip="play slower (-)", aria_label="play slower (-)"),
        el("output", "", "1×", data_tip="how fast it plays; 1× is a step a second"),
        el("button", "", "+", data_speed=1, data_key="+", data_tip="play faster (+)", aria_label="play faster (+)"),
        role="group",
        aria_label="speed",
    )


def finder(text: str, sought: Search | str | None, step: int, said: str) -> Html:
    """Draw the field, how many steps it finds, and what a jump has to say.

    Args:
        text: what is looked for, as it was typed.
        sought: what it means; if it means nothing, why, in one sentence.
        step: the step that is shown.
        said: what the last jump has to say.
    """
    form = el(
        "div",
        "finder",
        el("span", "lens", "⌕"),
        _field(text, wrong=isinstance(sought, str)),
        _arrow("previous", "match", "N", "the match before") if text else None,
        _arrow("next", "match", "n", "the next match") if text else None,
        _outcome(sought, step),
        el("button", "close", "×", data_find="close", data_tip="look for nothing", aria_label="look for nothing"),
        _hints() if sought is None else None,
        data_open=bool(text),
        role="search",
    )
    return Html(form + (el("p", "said", said, role="status") if said else ""))


def _field(text: str, *, wrong: bool) -> Html:
    return el(
        "input",
        "find",
        type="text",
        value=text,
        placeholder="preempted and free_blocks < 4",
        spellcheck="false",
        autocomplete="off",
        aria_label="find a step, a request or a block",
        aria_invalid="true" if wrong else None,
    )


def _outcome(sought: Search | str | None, step: int) -> Html | None:
    if sought is None:
        return None
    if isinstance(sought, str):
        return el("span", "bad", sought, role="alert")
    return el("span", "outcome", _found(sought, step), data_found=len(sought.steps or ()), role="status")


def _found(sought: Search, step: int) -> str:
    steps = sought.steps
    if steps is None:
        return "Too many steps to count: n finds the next one."
    if not steps:
        return "In no step of this trace."
    place = bisect_left(steps, step)
    if steps[place : place + 1] == (step,):
        return f"match {place + 1:,} of {len(steps):,}"
    return f"{count(len(steps), 'match', 'matches')}: {place:,} before, {len(steps) - place:,} after this step"


def _hints() -> Html:
    """What can be typed: examples to click, and the names of a question."""
    examples = [el("button", "", example, data_act=f"find:{example}") for example in _EXAMPLES]
    names = [el("code", "", name, data_tip=known.meaning) for name, known in NAMES.items()]
    return el(
        "div", "hints", el("p", "", el("em", "", "such as"), *examples), el("p", "", el("em", "", "names"), *names)
    )
