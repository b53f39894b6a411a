"""Reads grammars as the compiler writes them: EBNF in the dialect of llama.cpp, normalised by xgrammar.

::

    root ::= (("a" root_1) | ("b"))          sequences in parentheses, choices between them
    root_1 ::= ("" | ([a-z\\x00] root_1{2, 5}) | [0-9]*)
    tags ::= TagDispatch(("<f", root_1), loop_after_dispatch=true, excludes=())
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from engine.automaton import Range, complement

#: String literals and character classes, in which nothing of the syntax means anything; then the rest, piece by piece.
TOKEN = re.compile(
    r"""(?P<literal>"(?:\\.|[^"\\])*")
      | (?P<chars>\[(?:\\.|[^\]\\])*\])
      | (?P<name>[A-Za-z_][\w.-]*)
      | (?P<number>-?\d+)
      | (?P<sign>::=|\(=|[(){},|*+?=])
      | (?P<space>\s+)""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))|(.)", re.DOTALL)
_NAMED = {"0": 0, "n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "a": 7, "b": 8, "e": 27}


class UnknownSyntax(ValueError):
    """The grammar says something that this reader does not know."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of sorted, disjoint runs."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other; of nothing: the empty text."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """What the rule of this name says."""

    name: str


@dataclass(frozen=True, slots=True)
class Repeat:
    """Something again and again."""

    item: Node
    low: int
    high: int | None
    """None: without end."""


@dataclass(frozen=True, slots=True)
class TagDispatch:
    """Any text, until one of some strings occurs in it; then what its rule says."""

    tags: tuple[tuple[str, Rule], ...]
    loop: bool
    """Whether any text may follow again."""


Node = Chars | Sequence | Choice | Rule | Repeat | TagDispatch


def parse(text: str) -> dict[str, Node]:
    """The rules of a grammar by their names.

    Raises:
        UnknownSyntax: something in it is not known here.
    """
    return _Reader(text).rules()


def is_productive(rules: Mapping[str, Node], name: str = "root") -> bool:
    """Whether any finite text matches a rule: of `root ::= "a" root` none does."""
    productive: set[str] = set()

    def matches(node: Node) -> bool:
        match node:
            case Chars():
                return bool(node.ranges)
            case Sequence():
                return all(map(matches, node.items))
            case Choice():
                return any(map(matches, node.options))
            case Rule():
                return node.name in productive
            case Repeat():
                return node.low == 0 or matches(node.item)
            case TagDispatch():
                return True

    grown = True
    while grown:
        new = {each for each, body in rules.items() if each not in productive and matches(body)}
        productive |= new
        grown = bool(new)
    return name in productive


def literal(text: str) -> str:
    """A text as a string literal of the dialect."""
    plain = (char if char.isascii() and char.isprintable() and char not in '"\\' else _escaped(char) for char in text)
    return f'"{"".join(plain)}"'


def _escaped(char: str) -> str:
    return f"\\{char}" if char in '"\\' else f"\\U{ord(char):08x}"


class _Reader:
    """A cursor over the tokens of a grammar."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text):
            found = TOKEN.match(text, at)
            if found is None:
                raise UnknownSyntax(f"{text[at : at + 20]!r} is not known")
            if found.lastgroup != "space":
                self._tokens.append((str(found.lastgroup), found[0]))
            at = found.end()
        self._at = 0

    def rules(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        while self._at < len(self._tokens):
            name = self._take("name")
            self._expect("::=")
            rules[name] = self._choice()
            if self._peek() == "(=":  # what follows the rule: a hint for the compiler, which changes no text
                self._skip_parentheses()
        return rules

    def _choice(self) -> Node:
        options = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        items: list[Node] = []
        while self._begins_item():
            items.append(self._repeated(self._item()))
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _begins_item(self) -> bool:
        if self._at >= len(self._tokens) or self._peek(1) == "::=":
            return False
        kind, text = self._tokens[self._at]
        return kind in ("literal", "chars", "name") or text == "("

    def _item(self) -> Node:
        kind, text = self._tokens[self._at]
        self._at += 1
        if text == "(":
            inner = self._choice()
            self._expect(")")
            return inner
        if kind == "literal":
            return Sequence(tuple(Chars(((code, code),)) for code in _code_points(text[1:-1])))
        if kind == "chars":
            return Chars(_class(text[1:-1]))
        if self._peek() == "(":
            return self._dispatch(text)
        return Rule(text)

    def _repeated(self, item: Node) -> Node:
        match self._peek():
            case "*":
                low, high = 0, None
            case "+":
                low, high = 1, None
            case "?":
                low, high = 0, 1
            case "{":
                self._at += 1
                low = int(self._take("number"))
                self._expect(",")
                most = int(self._take("number"))
                high = None if most == -1 else most
            case _:
                return item
        self._at += 1
        return Repeat(item, low, high)

    def _dispatch(self, name: str) -> Node:
        if name != "TagDispatch":
            raise UnknownSyntax(f"{name} is not known")
        self._expect("(")
        tags: list[tuple[str, Rule]] = []
        loop = True
        while self._peek() != ")":
            if self._peek() == "(":
                self._at += 1
                trigger = "".join(map(chr, _code_points(self._take("literal")[1:-1])))
                self._expect(",")
                tags.append((trigger, Rule(self._take("name"))))
                self._expect(")")
            else:
                option = self._take("name")
                self._expect("=")
                loop = self._option(option, loop)
            if self._peek() == ",":
                self._at += 1
        self._at += 1
        return TagDispatch(tuple(tags), loop)

    def _option(self, option: str, loop: bool) -> bool:
        """Whether tags may follow each other, after an option of `TagDispatch` has been read."""
        if option == "excludes" and self._peek() == "(" and self._peek(1) == ")":
            self._at += 2
            return loop
        if option == "loop_after_dispatch":
            return self._take("name") == "true"
        raise UnknownSyntax(f"{option} of TagDispatch is not known")

    def _skip_parentheses(self) -> None:
        depth = 0
        while True:
            depth += {"(": 1, "(=": 1, ")": -1}.get(self._peek() or "", 0)
            self._at += 1
            if depth == 0:
                return

    def _peek(self, ahead: int = 0) -> str | None:
        at = self._at + ahead
        return self._tokens[at][1] if at < len(self._tokens) else None

    def _take(self, kind: str) -> str:
        if self._at >= len(self._tokens) or self._tokens[self._at][0] != kind:
            raise UnknownSyntax(f"a {kind} is missing before {self._peek()!r}")
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _expect(self, sign: str) -> None:
        if self._peek() != sign:
            raise UnknownSyntax(f"{sign!r} is missing before {self._peek()!r}")
        self._at += 1


def _code_points(spelled: str) -> list[int]:
    return [code for code, _ in _spelled(spelled)]


def _spelled(text: str) -> list[tuple[int, bool]]:
    """Code points of a spelling, and whether each was written as it is, without an escape."""
    points: list[tuple[int, bool]] = []
    for found in _ESCAPE.finditer(text):
        x, u, long, named, plain = found.groups()
        if plain is not None:
            points.append((ord(plain), True))
        elif named is not None:
            points.append((_NAMED.get(named, ord(named)), False))
        else:
            points.append((int(x or u or long, 16), False))
    return points


def _class(spelled: str) -> tuple[Range, ...]:
    negated = spelled.startswith("^")
    points = _spelled(spelled[1:] if negated else spelled)
    ranges: list[Range] = []
    at = 0
    while at < len(points):
        first = points[at][0]
        if at + 2 < len(points) and points[at + 1] == (ord("-"), True):
            ranges.append((first, points[at + 2][0]))
            at += 3
        else:
            ranges.append((first, first))
            at += 1
    merged = merge(ranges)
    return tuple(complement(merged)) if negated else tuple(merged)


def merge(ranges: list[Range]) -> list[Range]:
    """Runs of code points, sorted, with none that touches another."""
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged
