"""`Answers`: what a person has answered so far, as it stands in the address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from viz.quiz.question import Question

_NONE = "-"


@dataclass(frozen=True)
class Answers:
    """By question, the place of the choice from 0; None: not answered.

    Written as one character per question: `13-2` is the first choice, the third, none, the second.
    """

    chosen: tuple[int | None, ...]

    @classmethod
    def read(cls, written: str, questions: Sequence[Question]) -> Answers:
        """From the address; what is no answer to its question counts as none."""
        padded = written[: len(questions)].ljust(len(questions), _NONE)
        return cls(tuple(_read(mark, question) for mark, question in zip(padded, questions, strict=True)))

    def __str__(self) -> str:
        return "".join(_NONE if choice is None else str(choice + 1) for choice in self.chosen).rstrip(_NONE)

    def answer(self, place: int, choice: int) -> Answers:
        """With one more answer; a first answer stands."""
        if self.chosen[place] is not None:
            return self
        return Answers((*self.chosen[:place], choice, *self.chosen[place + 1 :]))

    def verdicts(self, questions: Sequence[Question]) -> list[bool | None]:
        """By question, whether it was answered right; None: not answered."""
        pairs = zip(self.chosen, questions, strict=True)
        return [None if choice is None else question.choices[choice].right for choice, question in pairs]


def _read(mark: str, question: Question) -> int | None:
    if mark not in "1234":
        return None
    choice = int(mark) - 1
    return choice if choice < len(question.choices) else None
