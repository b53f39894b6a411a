"""Plants an error into the real code, and takes it out again."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple


class Edit(NamedTuple):
    """A piece of a function's source, and what stands there instead."""

    function: Callable[..., Any]
    right: str
    wrong: str


class Mutant(NamedTuple):
    """An error that somebody could make."""

    name: str
    edits: tuple[Edit, ...]
    caught_by: tuple[str, ...]
    """The invariants of which the fuzzer names one, whichever shows first; or the name of a check in `CHECKS`."""


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The engine with the error in it.

    Raises:
        AssertionError: the code that it changes does not stand there, so it would change nothing.
    """
    functions = {edit.function for edit in mutant.edits}
    with ExitStack() as stack:
        for function in functions:
            stack.enter_context(_edited(function, [edit for edit in mutant.edits if edit.function is function]))
        yield


@contextmanager
def _edited(function: Any, edits: list[Edit]) -> Iterator[None]:
    # Every module that has imported the function holds the same object: exchanging its code reaches them all.
    source = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        assert source.count(edit.right) == 1, f"{function.__qualname__} has no {edit.right!r}, or several"
        source = source.replace(edit.right, edit.wrong)
    namespace: dict[str, Any] = {}
    future = "from __future__ import annotations\n"
    exec(compile(future + source, f"<mutant of {function.__qualname__}>", "exec"), function.__globals__, namespace)
    right_code = function.__code__
    function.__code__ = namespace[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = right_code
