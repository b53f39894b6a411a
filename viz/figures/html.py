"""HTML as a value: what is not marked as HTML is escaped, so no prompt can ever become markup."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_VOID = frozenset({"input", "br", "hr", "img"})


class Html(str):
    """A string that is markup already."""

    __slots__ = ()


Child = str | int | float | None
Attribute = str | int | float | bool | None


def el(tag: str, css: str = "", *children: Child, **attributes: Attribute) -> Html:
    """An element: `el("b", "name", "r0", data_req=0)` is `<b class="name" data-req="0">r0</b>`.

    Children of type `Html` stand as they are, others are escaped, `None` is left out. An attribute that is `None` or
    `False` is left out, `True` stands without a value; `_` in its name becomes `-`.
    """
    head = f'<{tag} class="{css}"' if css else f"<{tag}"
    head += "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Html(f"{head}>")
    return Html(f"{head}>{join(children)}</{tag}>")


def join(children: Iterable[Child], separator: str = "") -> Html:
    """Children one after another, escaped where they are not HTML."""
    return Html(separator.join(_child(child) for child in children if child is not None))


def _child(child: Child) -> str:
    return child if isinstance(child, Html) else escape(str(child), quote=False)


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = name.replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
