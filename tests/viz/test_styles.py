"""All stylesheets dress one document: a class is defined in one of them."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from viz.components import board

STYLES = Path(board.__file__).parent


def test_a_class_is_defined_in_one_stylesheet() -> None:
    defined: dict[str, set[str]] = defaultdict(set)
    for sheet in STYLES.glob("*.css"):
        for name in re.findall(r"^\.([\w-]+) \{", sheet.read_text(encoding="utf-8"), flags=re.MULTILINE):
            defined[name].add(sheet.name)
    assert len(defined) > 100
    assert {name: sheets for name, sheets in defined.items() if len(sheets) > 1} == {}


def test_every_stylesheet_is_worn() -> None:
    assert {f"{name}.css" for name in board._STYLES} == {sheet.name for sheet in STYLES.glob("*.css")}
