"""What users hand in as numbers, text and JSON, made plain: only what a trace can hold gets past the door.

NumPy's numbers and subclasses of `int` and `float` become Python's own; integers that no 64-bit field holds and text
that UTF-8 cannot spell are refused.
"""

from __future__ import annotations

import json
import math
import numbers
from typing import Any

import msgspec

from engine.errors import RequestError

#: The largest integer of a signed 64-bit field.
MAX_INT = 2**63 - 1

_MOST_SHOWN = 80


def is_int(value: object, low: int, high: int = MAX_INT) -> bool:
    """Whether a value is an integer in [low, high]; a bool is none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and low <= int(value) <= high


def plain_int(name: str, value: Any, low: int, allowed: str, high: int = MAX_INT) -> int:
    """An integer in [low, high].

    Args:
        name: whose value it is.
        value: what the user gave; a bool is no integer.
        low: the least that is allowed.
        allowed: the range in words.
        high: the most.

    Raises:
        RequestError: it is none.
    """
    if not is_int(value, low, high):
        raise RequestError(f"{name} must be an integer {allowed}, got {shown(value)}.")
    return int(value)


def plain_float(
    name: str, value: Any, low: float, high: float, allowed: str, *, open_left: bool = False, infinite: bool = False
) -> float:
    """A number in [low, high], or (low, high] if `open_left`; infinity only if `infinite`.

    Raises:
        RequestError: it is none.
    """
    number = _as_float(value)
    # Written so that NaN, for which every comparison is false, fails it.
    within = low <= number <= high and not (open_left and number == low)
    if not within or (math.isinf(number) and not infinite):
        raise RequestError(f"{name} must be {allowed}, got {shown(value)}.")
    return number


def plain_bool(name: str, value: Any) -> bool:
    """True or False.

    Raises:
        RequestError: it is neither.
    """
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be True or False, got {shown(value)}.")
    return value


def require_text(name: str, value: Any) -> str:
    """A non-empty string that UTF-8 can spell.

    Raises:
        RequestError: it is no string, empty, or holds half of a surrogate pair.
    """
    if not isinstance(value, str) or not value:
        raise RequestError(f"{name} must be a non-empty string, got {shown(value)}.")
    require_spellable(name, value)
    return str(value)


def require_spellable(name: str, text: str) -> None:
    """See that UTF-8 can spell a text.

    Raises:
        RequestError: it holds half of a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{name} must be valid Unicode, got a lone surrogate: {shown(text)}.") from error


def require_json(name: str, value: Any) -> None:
    """See that a value can be written as JSON.

    Raises:
        RequestError: something in it cannot.
    """
    try:
        msgspec.json.encode(value)
        # msgspec writes null for a number that JSON has no word for; here, that would be another value.
        json.dumps(value, allow_nan=False, default=lambda other: None)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        why = " ".join(str(error).split()).rstrip(".")
        raise RequestError(f"{name} must hold nothing but JSON values: {why}.") from error


def shown(value: object) -> str:
    """A value as an error shows it: on one line, not too long."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # an integer of thousands of digits
        return f"{type(value).__name__} too long to show"
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"


def _as_float(value: Any) -> float:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    try:
        return float(value) if is_number else math.nan
    except OverflowError:  # an integer or a fraction far beyond any range
        return math.inf if value > 0 else -math.inf
