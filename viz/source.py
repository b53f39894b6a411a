"""Places in the code of the engine, found by name when they are asked for, so that a link never points beside them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import engine

#: The folder that holds `engine/`, which places are relative to.
ROOT = Path(engine.__file__).parents[1]


class Place(NamedTuple):
    """A function of the engine: a file relative to the repository, and its name, with its class before it."""

    path: str
    symbol: str

    @property
    def line(self) -> int:
        """The line of its `def`, 1 for the first of the file.

        Raises:
            LookupError: the file defines no such function.
        """
        line = _definitions(self.path).get(self.symbol)
        if line is None:
            raise LookupError(f"{self.path} defines no {self.symbol}")
        return line

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@cache
def _definitions(path: str) -> dict[str, int]:
    """Line by name of every function and method of a file."""
    lines: dict[str, int] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines[prefix + node.name] = node.lineno
            elif isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")

    visit(ast.parse((ROOT / path).read_text(encoding="utf-8")).body, "")
    return lines
