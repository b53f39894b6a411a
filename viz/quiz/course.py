"""Which questions a trace is asked: all kinds that it has something of, spread over the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from engine.metrics import IterationMetrics
from engine.trace import events as ev
from sim.timeline import StepView, Timeline
from viz.quiz import memory, sampling, scheduling
from viz.quiz.question import Asker, Question

#: Questions of a whole trace, and of one kind in it.
MOST_QUESTIONS, _MOST_OF_A_KIND = 10, 2
#: Steps that are looked into for a question of one kind: each has its events decoded and its states folded.
_TRIES = 24


@dataclass(frozen=True)
class Kind:
    """Questions of one kind."""

    title: str
    ask: Asker
    may_ask: Callable[[IterationMetrics], bool]
    """Whether a step of such numbers may have something to ask; what the step itself holds decides."""


KINDS = (
    Kind("Preemption", scheduling.victim, lambda facts: facts.preemptions > 0),
    Kind("Prefix cache", memory.prefix_hit, lambda facts: facts.queried_tokens > 0),
    Kind("Eviction", memory.evicted, lambda facts: facts.evictions > 0),
    Kind("Drafts", sampling.drafts, lambda facts: sum(facts.accepted) > 0),
    Kind("Grammar", sampling.allowed_token, lambda facts: facts.output_tokens > 0),
    Kind("Admission", scheduling.admission, lambda facts: facts.num_waiting > 0),
    Kind("Tokens of a step", scheduling.tokens, lambda facts: facts.prefill_tokens > 0 or bool(facts.drafted)),
    Kind("Free blocks", memory.free_blocks, lambda facts: facts.tokens > 0),
    Kind("New blocks", memory.handed_out, lambda facts: facts.tokens > 0),
)


@dataclass(frozen=True)
class Asked:
    """A question, and the title of its kind."""

    title: str
    question: Question


def questions_of_step(view: StepView) -> list[Asked]:
    """Every question that a step has an answer to, one of each kind."""
    return [Asked(kind.title, question) for kind in KINDS for question in _ask(kind, view)]


def questions_of_run(timeline: Timeline) -> list[Asked]:
    """Questions about a whole run, in the order of its steps: each kind is asked once before any is asked twice, those
    first that are rare in a run."""
    asked_of: set[int] = set()
    by_kind = [_questions(timeline, kind, asked_of) for kind in KINDS]
    # Made one at a time: of a large trace, each costs the folding of a state.
    in_turns = (next(questions, None) for _ in range(_MOST_OF_A_KIND) for questions in by_kind)
    chosen = list(islice(filter(None, in_turns), MOST_QUESTIONS))
    order = {kind.title: place for place, kind in enumerate(KINDS)}
    return sorted(chosen, key=lambda asked: (asked.question.step, order[asked.title]))


def _questions(timeline: Timeline, kind: Kind, asked_of: set[int]) -> Iterator[Asked]:
    """Questions of one kind, rather about steps of which nothing has been asked yet; their steps join `asked_of`."""
    steps = list(_spread([facts.step for facts in timeline.series if kind.may_ask(facts)]))
    for step in sorted(steps, key=lambda step: step in asked_of):
        for question in _ask(kind, timeline.step(step)):
            asked_of.add(step)
            yield Asked(kind.title, question)


def _ask(kind: Kind, view: StepView) -> Iterator[Question]:
    question = kind.ask(view) if any(isinstance(event, ev.StepScheduled) for event in view.events) else None
    if question is not None and len(question.choices) > 1:
        yield question


def _spread(steps: Sequence[int]) -> Iterator[int]:
    """Some of many steps: the one in the middle, those in the middle of both halves, and so on."""
    parts = deque([steps])
    for _ in range(_TRIES):
        part = parts.popleft() if parts else ()
        if not part:
            continue
        middle = len(part) // 2
        yield part[middle]
        parts += [part[:middle], part[middle + 1 :]]
