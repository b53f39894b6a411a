"""What several figures share: what a person has selected, the chip of a request, the frame of a panel."""

from __future__ import annotations

from dataclasses import dataclass

from viz.figures.html import Child, Html, el
from viz.gallery import GALLERY
from viz.theme import request_class


@dataclass(frozen=True)
class Selection:
    """What a person looks at; all of it stands in the address of the page. `view` names one of `viz.views`."""

    view: str = "all"
    request: int | None = None
    block: int | None = None
    only: str | None = None
    """Events of this type, or of this request (`r3`), and no others."""
    event: int | None = None
    """Sequence number of the event whose fields are shown."""
    asked: bool = False
    """Of a large trace: whether it is to be checked and replayed, which takes a while."""


def chip(serial: int, *, hollow: bool = False, selected: bool = False, tip: str | None = None) -> Html:
    """The name of a request in its colour; a click selects it. Hollow: it holds no seat in this step."""
    css = f"chip {request_class(serial)}" + (" hollow" if hollow else "") + (" selected" if selected else "")
    return el("button", css, f"r{serial}", data_act=f"request:{serial}", data_req=serial, data_tip=tip)


def panel(name: str, title: str, subtitle: Child, *body: Child, aside: Child = None) -> Html:
    """A panel that answers one question; `aside` stands at the right of its title."""
    words = el("div", "", el("h2", "", title), el("p", "sub", subtitle))
    head = el("header", "", words, el("p", "aside", aside) if aside else None)
    return el("section", f"panel {name}", head, *body, data_panel=name)


def label(text: Child) -> Html:
    """A small heading within a panel."""
    return el("div", "label", text)


def empty(text: str) -> Html:
    """Why there is nothing to see."""
    return el("p", "empty", text)


def count(number: int, thing: str, things: str | None = None) -> str:
    """`1 block`, `2 blocks`."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def empty_but(text: str, name: str) -> Html:
    """Why there is nothing to see, and a situation of the gallery in which there is."""
    shown = next(situation for situation in GALLERY if situation.name == name)
    button = el("button", "go-to", shown.title, data_act=f"open:{name}", data_tip=shown.words)
    return el("p", "empty", f"{text} See instead: ", button)
