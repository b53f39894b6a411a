"""`Question`: what a step is going to decide, with one right answer and others that a misunderstanding would give."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from engine.trace import events as ev
from sim.timeline import StepView
from viz.explain import Rule, explain
from viz.explain.words import count

#: What a person needs to see of the moment before the step.
Sight = Literal["queues", "pool", "automaton"]

#: Answers have the keys 1 to 4.
MOST_CHOICES = 4


@dataclass(frozen=True)
class Choice:
    """An answer that can be chosen."""

    words: str
    why: str
    """Why it is right, or what is wrong with it, in one sentence."""
    right: bool = False


@dataclass(frozen=True)
class Table:
    """Numbers that the answer follows from."""

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Question:
    """One question about one step; `choices` has exactly one that is right."""

    step: int
    ask: str
    choices: tuple[Choice, ...]
    rule: Rule
    sights: tuple[Sight, ...]
    view: str
    """Name of the view in which the answer can be seen."""
    request: int | None = None
    block: int | None = None
    given: Table | None = None

    @property
    def right(self) -> int:
        """Place of the right choice, from 0."""
        return next(place for place, choice in enumerate(self.choices) if choice.right)


#: Makes a question of a step; None if the step has nothing to ask of that kind.
Asker = Callable[[StepView], Question | None]


def choices(right: Choice, wrong: Iterable[Choice], order: Callable[[Choice], float | str]) -> tuple[Choice, ...]:
    """The right answer among the first wrong ones that differ, in an order that gives nothing away."""
    offered = {right.words: right}
    for choice in wrong:
        if len(offered) < MOST_CHOICES:
            offered.setdefault(choice.words, choice)
    return tuple(sorted(offered.values(), key=order))


def amounts(right: int, why: str, wrong: Iterable[tuple[int, str]], thing: str) -> tuple[Choice, ...]:
    """Numbers of a thing to choose from, ascending; what is below 0 is left out."""
    numbers = {count(number, thing): number for number in (right, *(number for number, _ in wrong))}
    offered = (Choice(count(number, thing), reason) for number, reason in wrong if number >= 0)
    return choices(Choice(count(right, thing), why, right=True), offered, lambda choice: numbers[choice.words])


def why_of(view: StepView, event: ev.Event) -> str:
    """The reason of a decision, as every other panel gives it."""
    said = next(reason.sentence for reason in explain(view) if reason.seq == event.seq)
    return sentence(said)


def sentence(words: str) -> str:
    """With a capital and a full stop."""
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "”")) else ".")
