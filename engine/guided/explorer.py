"""The grammar explorer: a small grammar becomes an automaton that can be drawn.

The compiler's own automata have stacks and no numbers. Here a grammar is read anew: where a text may stand is a set of
*places*, each a stack of what is still to come. Reading a character replaces the set by another; equal sets are one
state, and in the end states that allow the same continuations are merged. A grammar without nesting has finitely many
states; of one with nesting, or with too many, only the beginning is drawn.

::

    yes|yeah        0 ──y──▶ 1 ──e──▶ 2 ──s──▶ (4)
                                      2 ──a──▶ 3 ──h──▶ (4)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from engine.automaton import Automaton, Edge, Range, complement
from engine.guided.ebnf import (
    Chars,
    Choice,
    Node,
    Repeat,
    Rule,
    Sequence,
    TagDispatch,
    UnknownSyntax,
    merge,
    parse,
)

#: Places in one state: beyond it a grammar is ambiguous without end, or recurs on its left.
MAX_PLACES = 1_000

#: Places looked at over all: what bounds the time of an exploration.
MAX_WORK = 100_000

_Stack = int
_EMPTY: _Stack = 0


class _TooLarge(Exception):
    """The exploration has reached a bound."""


class _Free(NamedTuple):
    """Inside of a `TagDispatch`: any text, of which the last characters are the beginning of a trigger."""

    dispatch: TagDispatch
    read: str


_Frame = Node | _Free

#: What a place reads next, and the stack behind it.
_Step = tuple[tuple[Range, ...], _Stack]


class _State(NamedTuple):
    """A set of places."""

    steps: tuple[_Step, ...]
    accepting: bool


def explore(grammar: str, max_states: int) -> Automaton | None:
    """The automaton of a grammar; None if it cannot be drawn.

    Args:
        grammar: EBNF as the compiler writes it, see `engine.guided.ebnf`.
        max_states: states to draw at most, the one for all others included; at least 2.
    """
    try:
        rules = parse(grammar)
        return _minimal(_Explorer(rules, max_states).explore())
    except (UnknownSyntax, KeyError, _TooLarge):
        return None


class _Explorer:
    """Finds the states of a grammar, in the order of their distance from the start."""

    def __init__(self, rules: dict[str, Node], max_states: int) -> None:
        self._rules = rules
        self._max_states = max_states
        # Stacks are numbered: equal ones have the same number. 0 is the empty one.
        self._stacks: dict[tuple[_Frame, _Stack], _Stack] = {}
        self._frames: list[tuple[_Frame, _Stack] | None] = [None]
        self._work = 0

    def explore(self) -> _Drawing:
        start = self._state([self._push(Rule("root"), _EMPTY)])
        numbers = {start: 0}
        states = [start]
        edges: list[dict[int, list[Range]]] = []
        beyond: int | None = None
        for state in states:  # grows meanwhile
            outgoing: dict[int, list[Range]] = {}
            for characters, target in self._successors(state):
                number = numbers.get(target)
                if number is None and len(states) < self._max_states - 1:
                    number = numbers[target] = len(states)
                    states.append(target)
                if number is None:
                    number = beyond = self._max_states - 1
                outgoing.setdefault(number, []).append(characters)
            edges.append(outgoing)
        accepting = {number for number, state in enumerate(states) if state.accepting}
        return _Drawing([{to: merge(runs) for to, runs in each.items()} for each in edges], accepting, beyond)

    def _successors(self, state: _State) -> Iterator[tuple[Range, _State]]:
        """What each run of characters leads to; runs on which all places agree."""
        cuts = sorted({cut for ranges, _ in state.steps for first, last in ranges for cut in (first, last + 1)})
        found: dict[frozenset[_Stack], _State] = {}
        for first, end in itertools.pairwise(cuts):
            reached = frozenset(
                rest for ranges, rest in state.steps if any(low <= first <= high for low, high in ranges)
            )
            if reached:
                if reached not in found:
                    found[reached] = self._state(reached)
                yield (first, end - 1), found[reached]

    def _state(self, stacks: Iterable[_Stack]) -> _State:
        """The state of being at the top of any of these stacks."""
        seen = set(stacks)
        todo = sorted(seen)
        steps: set[_Step] = set()
        accepting = False
        while todo:
            stack = todo.pop()
            if stack == _EMPTY:
                accepting = True
                continue
            self._work += 1
            if len(seen) > MAX_PLACES or self._work > MAX_WORK:
                raise _TooLarge
            entry = self._frames[stack]
            assert entry is not None
            reads, opened = self._open(*entry)
            steps.update(reads)
            todo += [each for each in opened if each not in seen]
            seen.update(opened)
        return _State(tuple(sorted(steps)), accepting)

    def _open(self, frame: _Frame, rest: _Stack) -> tuple[list[_Step], list[_Stack]]:
        """What the top of a stack reads, and the stacks it may also stand for without reading anything."""
        match frame:
            case Chars():
                return [(frame.ranges, rest)], []
            case Rule():
                return [], [self._push(self._rules[frame.name], rest)]
            case Choice():
                return [], [self._push(option, rest) for option in frame.options]
            case Sequence():
                stack = rest
                for item in reversed(frame.items):
                    stack = self._push(item, stack)
                return [], [stack]
            case Repeat():
                return [], self._repeat(frame, rest)
            case TagDispatch():
                return [], [self._push(_Free(frame, ""), rest)]
            case _Free():
                return self._read_freely(frame, rest), [rest]

    def _repeat(self, repeat: Repeat, rest: _Stack) -> list[_Stack]:
        item, low, high = repeat.item, repeat.low, repeat.high
        opened = [rest] if low == 0 else []
        if high != 0:
            again = Repeat(item, max(low - 1, 0), None if high is None else high - 1)
            opened.append(self._push(item, self._push(again, rest)))
        return opened

    def _read_freely(self, free: _Free, rest: _Stack) -> list[_Step]:
        """Each character that begins or goes on with a trigger by itself, and all the others together."""
        dispatch = free.dispatch
        triggers = dict(dispatch.tags)
        letters = sorted({letter for trigger in triggers for letter in trigger})
        steps: list[_Step] = []
        for letter in letters:
            read = free.read + letter
            ended = next((trigger for trigger in triggers if read.endswith(trigger)), None)
            if ended is not None:
                behind = self._push(_Free(dispatch, ""), rest) if dispatch.loop else rest
                stack = self._push(triggers[ended], behind)
            else:
                stack = self._push(_Free(dispatch, _longest_beginning(read, triggers)), rest)
            steps.append((((ord(letter), ord(letter)),), stack))
        others = complement(merge([(ord(letter), ord(letter)) for letter in letters]))
        return [*steps, (tuple(others), self._push(_Free(dispatch, ""), rest))]

    def _push(self, frame: _Frame, rest: _Stack) -> _Stack:
        entry = (frame, rest)
        stack = self._stacks.get(entry)
        if stack is None:
            stack = self._stacks[entry] = len(self._frames)
            self._frames.append(entry)
        return stack


def _longest_beginning(read: str, triggers: Iterable[str]) -> str:
    """The longest end of a text that a trigger begins with."""
    ends = (read[start:] for start in range(len(read) + 1))
    return next(end for end in ends if any(trigger.startswith(end) for trigger in triggers))


class _Drawing(NamedTuple):
    """States by number; the last one may stand for all that was left out."""

    edges: list[dict[int, list[Range]]]
    """Per explored state the runs of characters that lead to each target."""
    accepting: set[int]
    beyond: int | None


def _minimal(drawing: _Drawing) -> Automaton:
    """Merge states with the same continuations (Moore): all that accept alike are one class, and a class is split as
    long as its members lead to different ones."""
    edges = [*drawing.edges] if drawing.beyond is None else [*drawing.edges, {}]
    beyond = None if drawing.beyond is None else len(edges) - 1
    if beyond is not None:
        edges = [{(beyond if to == drawing.beyond else to): runs for to, runs in each.items()} for each in edges]
    classes = [2 if state == beyond else int(state in drawing.accepting) for state in range(len(edges))]
    num_classes = 0
    while num_classes < (num_classes := len(set(classes))):
        signatures = [(classes[state], _by_class(edges[state], classes)) for state in range(len(edges))]
        # Numbered at first sight: state 0 stays 0, and the others keep the order of their distance.
        numbers: dict[object, int] = {}
        classes = [numbers.setdefault(signature, len(numbers)) for signature in signatures]
    members = {number: state for state, number in reversed(list(enumerate(classes)))}
    return Automaton(
        num_states=num_classes,
        accepting=tuple(sorted({classes[state] for state in drawing.accepting})),
        edges=tuple(
            Edge(number, target, runs)
            for number in range(num_classes)
            for target, runs in _by_class(edges[members[number]], classes)
        ),
        beyond=None if beyond is None else classes[beyond],
    )


def _by_class(outgoing: dict[int, list[Range]], classes: list[int]) -> tuple[tuple[int, tuple[Range, ...]], ...]:
    """The runs of characters that lead to each class."""
    runs: dict[int, list[Range]] = {}
    for target, ranges in outgoing.items():
        runs.setdefault(classes[target], []).extend(ranges)
    return tuple((target, tuple(merge(ranges))) for target, ranges in sorted(runs.items()))
