"""Preemption: the story of one request that lost its blocks, in four frames from the full pool to its return."""

from __future__ import annotations

from bisect import bisect_left

from sim.preemptions import Preemption, preemption, victims
from sim.timeline import StepView, Timeline
from viz.explain import RULES
from viz.figures.chart import duration
from viz.figures.code import code
from viz.figures.html import Child, Html, el
from viz.figures.parts import Selection, chip, count, empty_but, label, panel
from viz.figures.preemption_frames import LEAST, are, blocks_missing, came_back, full_pool, gives_way

#: Buttons drawn of the preemptions of a run.
MOST_NAMED = 16


def preemption_story(timeline: Timeline, view: StepView, selection: Selection) -> Html:
    """Draw the newest preemption up to the step, or that of the selected request which it has not got over yet."""
    title, words = "Preemption", "a running request loses its blocks to another, and is computed again later"
    told = chosen(timeline, view.step, selection.request)
    if told is None:
        return panel("preemption", title, words, _nothing())
    at = timeline.step(told.step)
    back = None if told.back is None else told.back.step
    missing, settled = timeline.state_at(told.position), timeline.state_at(told.settled)
    drawn = (
        (max(told.step - 1, timeline.steps[0]), "The pool is full", full_pool(told, at.before)),
        (told.step, "An allocation fails", blocks_missing(told, missing)),
        (told.step, "One gives way", gives_way(told, missing, settled, at.planned)),
        (back, "It comes back", came_back(told, timeline)),
    )
    frames = [
        _frame(number, title, step == view.step, _way(step, told.victim, selection), parts)
        for number, (step, title, parts) in enumerate(drawn, 1)
    ]
    return panel(
        "preemption",
        title,
        words,
        el("p", "summary", *_summary(told, timeline)),
        el("div", "frames", *frames),
        *_others(timeline, told, selection),
        code(RULES["victim"]),
        code(RULES["slots"]),
    )


def chosen(timeline: Timeline, step: int, selected: int | None) -> Preemption | None:
    """Whose story is told at a step; it begins one step before the preemption."""
    everyone = victims(timeline)
    begun = [each for each in everyone if each[0] - 1 <= step]
    if not begun:
        return preemption(timeline, *everyone[0]) if everyone else None
    of_selected = [each for each in begun if each[1] == selected]
    if of_selected:
        told = preemption(timeline, *of_selected[-1])
        over = told.caught_up or timeline.life_lines[told.victim].finished
        if over is None or step <= over or told.step == begun[-1][0]:
            return told
    newest = next(each for each in begun if each[0] == begun[-1][0])
    return preemption(timeline, *newest)


def _nothing() -> Html:
    return empty_but("Nobody lost its blocks in this run: whoever needed a block got one.", "preemption")


def _summary(told: Preemption, timeline: Timeline) -> list[Child]:
    """The whole story in a few sentences."""
    event, victim = told.event, chip(told.victim, hollow=True)
    said: list[Child] = [f"In step {told.step} ", chip(event.for_request)]
    said.append(f" needs {count(event.needed, 'block')} and {event.available:,} {are(event.available)} free. ")
    if event.victim == event.for_request:
        said.append(f"It is itself {LEAST[timeline.header.config.scheduler.policy]}, so it gives back its own")
    else:
        said += [victim, " has to give back its own"]
    said.append(f" {count(len(told.freed_block_ids), 'block')}, and waits. ")
    if told.back is None:
        return [*said, "In this trace it never runs again."]
    lost, had = told.num_lost_tokens, event.num_computed_tokens
    said.append(f"It comes back in step {told.back.step} and computes {lost:,} of its {count(had, 'token')} again")
    gap = _gap(told, timeline)
    return [*said, f": {gap} pass without a new token." if gap else "."]


def _gap(told: Preemption, timeline: Timeline) -> str | None:
    """How long its client got nothing: in steps, and in time."""
    life = timeline.life_lines[told.victim]
    if told.caught_up is None:
        return None
    place = bisect_left(life.tokens, told.caught_up)
    if place == 0:
        return None
    steps = told.caught_up - life.tokens[place - 1] - 1
    return f"{count(steps, 'step')}, {duration(life.request.itls_ns[place - 1])}"


def _frame(number: int, title: str, here: bool, way: Html | None, drawn: tuple[Child, ...]) -> Html:
    head = el("header", "", el("b", "number", number), el("h3", "", title), way)
    return el("article", "frame here" if here else "frame", head, *drawn, data_frame=number, data_here=here)


def _way(step: int | None, victim: int, selection: Selection) -> Html | None:
    """A button to a step of the story."""
    if step is None:
        return None
    return el("button", "go-to", f"step {step}", data_act=_act(step, victim, selection), data_frame_step=step)


def _act(step: int, victim: int, selection: Selection) -> str:
    """To a step, with the victim selected so that its story stays; to select it twice would let go of it."""
    return f"step:{step}" if selection.request == victim else f"step:{step}&request:{victim}"


def _others(timeline: Timeline, told: Preemption, selection: Selection) -> tuple[Html, ...]:
    """The other preemptions of the run; of many, those around this one."""
    everyone = victims(timeline)
    if len(everyone) == 1:
        return (label("This is the only preemption of the run."),)
    middle = bisect_left(everyone, (told.step, told.victim))
    first = max(0, min(middle - MOST_NAMED // 2, len(everyone) - MOST_NAMED))
    shown = everyone[first : first + MOST_NAMED]
    buttons = [_other(step, victim, told, selection) for step, victim in shown]
    hidden = len(everyone) - len(shown)
    if hidden:
        buttons.append(el("span", "elided", f"… {hidden:,} more", data_hidden=hidden))
    return label(f"the {count(len(everyone), 'preemption')} of this run"), el("div", "chips others", *buttons)


def _other(step: int, victim: int, told: Preemption, selection: Selection) -> Html:
    this = (step, victim) == (told.step, told.victim)
    css = "other this" if this else "other"
    words, act = (f"step {step}", el("b", "", f" r{victim}")), _act(step, victim, selection)
    return el("button", css, *words, data_act=act, data_other=victim, data_other_step=step)
