"""Reads a figure back: every element with its attributes, so that a test can ask what was drawn."""

from __future__ import annotations

from dataclasses import dataclass
from html.parser import HTMLParser


@dataclass(frozen=True)
class Element:
    """A start tag."""

    tag: str
    attributes: dict[str, str]

    def __getitem__(self, name: str) -> str:
        return self.attributes[name]

    @property
    def classes(self) -> list[str]:
        """Its CSS classes."""
        return self.attributes.get("class", "").split()


class Drawn(HTMLParser):
    """A figure, taken apart. Fails on elements that are not closed in order."""

    _VOID = frozenset({"input", "br", "hr", "img"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))
        if tag not in self._VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, **wanted: str | int | None) -> list[Element]:
        """Elements that have these attributes, with these values unless None: `all(data_state="free")`."""
        asked = {name.replace("_", "-"): value for name, value in wanted.items()}
        return [
            element
            for element in self.elements
            if all(
                name in element.attributes and (value is None or element[name] == str(value))
                for name, value in asked.items()
            )
        ]

    def one(self, **wanted: str | int | None) -> Element:
        """The only one of them."""
        (element,) = self.all(**wanted)
        return element

    def numbers(self, name: str) -> list[int]:
        """The values of an attribute, in the order in which they were drawn."""
        name = name.replace("_", "-")
        return [int(element[name]) for element in self.elements if name in element.attributes]
