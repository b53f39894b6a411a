"""`ConfigFile`: the JSON object of a model folder's file, whose values are taken out by kind and range.

Such a file comes from anywhere: a size is checked before anything of that size is made.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from engine.errors import ModelError
from engine.plain_values import is_int, shown

#: More layers, heads or elements than any model has.
MOST = 2**24


class ConfigFile:
    """An object of a file.

    Args:
        where: what to call it in an error.
        values: what it holds.
    """

    def __init__(self, where: str, values: dict[str, Any]) -> None:
        self.where = where
        self.values = values

    @classmethod
    def read(cls, path: Path) -> ConfigFile:
        """Read a file.

        Raises:
            ModelError: it is not there, or holds no JSON object.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ModelError(f"{path.parent} is not a model folder: it holds no {path.name}.") from error
        except (OSError, ValueError, RecursionError) as error:
            raise ModelError(f"{path} cannot be read: {error}.") from error
        if not isinstance(values, dict):
            raise ModelError(f"{path} must hold a JSON object.")
        return cls(str(path), values)

    def integer(self, name: str, low: int = 1, high: int = MOST, default: int | None = None) -> int:
        """An integer in [low, high]; `default` if it is absent or null.

        Raises:
            ModelError: it is none, or absent with no default.
        """
        value = self._value(name, default)
        if not is_int(value, low, high):
            raise self.refused(name, f"an integer in [{low}, {high}]")
        return int(value)

    def number(self, name: str, default: float) -> float:
        """A finite number > 0; `default` if it is absent or null, which is refused too if it is NaN.

        Raises:
            ModelError: it is none.
        """
        value = self._value(name, default)
        try:
            number = math.nan if isinstance(value, bool) or not isinstance(value, (int, float)) else float(value)
        except OverflowError:
            number = math.inf
        if not 0.0 < number < math.inf:
            raise self.refused(name, "a finite number > 0")
        return number

    def flag(self, name: str) -> bool:
        """True or false; false if it is absent or null.

        Raises:
            ModelError: it is neither.
        """
        value = self._value(name, False)
        if not isinstance(value, bool):
            raise self.refused(name, "true or false")
        return value

    def text(self, name: str) -> str | None:
        """A string; None if it is absent or null.

        Raises:
            ModelError: it is none.
        """
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise self.refused(name, "a string")
        return value

    def texts(self, name: str) -> list[str]:
        """A list of strings; empty if it is absent or null.

        Raises:
            ModelError: it is none.
        """
        value = self._value(name, [])
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self.refused(name, "a list of strings")
        return value

    def table(self, name: str) -> ConfigFile:
        """An object within it; an empty one if it is absent or null.

        Raises:
            ModelError: it is none.
        """
        value = self._value(name, {})
        if not isinstance(value, dict):
            raise self.refused(name, "an object")
        return ConfigFile(f"{name} in {self.where}", value)

    def refused(self, name: str, allowed: str) -> ModelError:
        """The error that says what a value must be."""
        return ModelError(f"{name} must be {allowed}, got {shown(self.values.get(name))} in {self.where}.")

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is None and default is None:
            raise ModelError(f"{self.where} lacks {name!r}.")
        return default if value is None else value
