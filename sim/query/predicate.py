"""Reads a question such as `preempted and free_blocks < 4`: a small part of Python's expressions, never run as Python.

Allowed are the names of `sim.query.names`, numbers and words in quotes, comparisons, `in` and `not in` a list, `and`,
`or`, `not`, brackets, and `+`, `-`, `*` between numbers. A number alone holds if it is not 0.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from engine.errors import QueryError
from engine.metrics import IterationMetrics
from sim.query.names import NAMES, Row

_LONGEST = 500

_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_EQUALITY: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {ast.Eq: operator.eq, ast.NotEq: operator.ne}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


class Moment(NamedTuple):
    """What a question is asked of."""

    facts: IterationMetrics
    row: Row | None
    """One of the step's rows, if the question names anything of one."""


class _Part(NamedTuple):
    """A part of a question: what kind of value it has, and how to get it."""

    kind: Literal["number", "text", "truth"]
    value: Callable[[Moment], Any]


class Predicate:
    """A question.

    Args:
        text: the question.

    Raises:
        QueryError: in one sentence, what is wrong with it and what is allowed.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        body = _parsed(text)
        part = _read(body)
        if part.kind == "text":
            raise QueryError(f"{text!r} is text: compare it, as in phase == 'decode'.")
        self._value = part.value
        names = {node.id for node in ast.walk(body) if isinstance(node, ast.Name)}
        self.is_of_rows = any(NAMES[name].of == "row" for name in names)
        """Whether it is asked of every row of a step; it holds for the step if it does for one."""
        self.request = _required_request(body)
        """A request without which it cannot hold."""

    def holds(self, moment: Moment) -> bool:
        """Whether it does."""
        return bool(self._value(moment))


def _parsed(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise QueryError(f"A question has at most {_LONGEST} characters, this one has {len(text)}.")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise QueryError(
            f"{text!r} is no question; one reads like preempted, free_blocks < 4, or request == 'r3' and "
            "phase == 'decode'."
        ) from error


def _read(node: ast.expr) -> _Part:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            parts = [_truth(value) for value in values]
            return _Part("truth", lambda moment: all(part(moment) for part in parts))
        case ast.BoolOp(op=ast.Or(), values=values):
            parts = [_truth(value) for value in values]
            return _Part("truth", lambda moment: any(part(moment) for part in parts))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            part = _truth(operand)
            return _Part("truth", lambda moment: not part(moment))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = _number(operand)
            return _Part("number", lambda moment: -number(moment))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _combined(_ARITHMETIC[type(op)], _number(left), _number(right))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            return _comparison([left, *comparators], ops)
        case ast.Name(id=name):
            return _named(name)
        case ast.Constant(value=bool() as truth):
            return _Part("truth", lambda moment: truth)
        case ast.Constant(value=int() | float() as constant):
            return _Part("number", lambda moment: constant)
        case ast.Constant(value=str() as constant):
            return _Part("text", lambda moment: constant)
    raise QueryError(
        f"{ast.unparse(node)!r} cannot stand in a question: allowed are names, numbers, words in quotes, "
        "comparisons, in, and, or, not, +, - and *."
    )


def _named(name: str) -> _Part:
    known = NAMES.get(name)
    if known is None:
        raise QueryError(f"A question cannot name {name!r}; it can name {', '.join(sorted(NAMES))}.")
    value = known.value
    if known.of == "step":
        return _Part(known.kind, lambda moment: value(moment.facts))
    return _Part(known.kind, lambda moment: value(moment.row))


def _truth(node: ast.expr) -> Callable[[Moment], Any]:
    part = _read(node)
    if part.kind == "text":
        raise QueryError(f"{ast.unparse(node)!r} is text: compare it, as in phase == 'decode'.")
    return part.value


def _number(node: ast.expr) -> Callable[[Moment], Any]:
    part = _read(node)
    if part.kind != "number":
        raise QueryError(f"{ast.unparse(node)!r} is no number.")
    return part.value


def _combined(
    combine: Callable[[Any, Any], Any], left: Callable[[Moment], Any], right: Callable[[Moment], Any]
) -> _Part:
    return _Part("number", lambda moment: combine(left(moment), right(moment)))


def _comparison(operands: list[ast.expr], ops: list[ast.cmpop]) -> _Part:
    """`a < b < c` is `a < b and b < c`."""
    pairs = [_pair(left, op, right) for left, op, right in zip(operands, ops, operands[1:], strict=False)]
    return _Part("truth", lambda moment: all(pair(moment) for pair in pairs))


def _pair(left: ast.expr, op: ast.cmpop, right: ast.expr) -> Callable[[Moment], bool]:
    first = _read(left)
    if isinstance(op, (ast.In, ast.NotIn)):
        if not isinstance(right, (ast.List, ast.Tuple, ast.Set)):
            raise QueryError(f"{ast.unparse(right)!r} is no list: write phase in ['prefill', 'decode'].")
        equal = [_pair(left, ast.Eq(), each) for each in right.elts]
        wanted = isinstance(op, ast.In)
        return lambda moment: any(each(moment) for each in equal) is wanted
    second = _read(right)
    if first.kind != second.kind or first.kind == "truth":
        raise QueryError(
            f"{ast.unparse(left)!r} and {ast.unparse(right)!r} cannot be compared: numbers are compared with numbers, "
            "text with words in quotes."
        )
    compare = _EQUALITY.get(type(op)) or (_ORDER.get(type(op)) if first.kind == "number" else None)
    if compare is None:
        raise QueryError(f"{ast.unparse(left)!r} is text: it is compared with ==, != or in.")
    return lambda moment: compare(first.value(moment), second.value(moment))


def _required_request(node: ast.expr) -> str | None:
    """The word that `request == '…'` names, where nothing but `and` stands around it."""
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return next(filter(None, map(_required_request, values)), None)
        case ast.Compare(left=ast.Name(id="request"), ops=[ast.Eq()], comparators=[ast.Constant(value=str() as word)]):
            return word
    return None
