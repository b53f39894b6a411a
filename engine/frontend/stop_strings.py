"""`StopStrings`: finds stop strings in text that arrives in pieces, and holds back what may become one.

A streaming client must never see the beginning of a stop string that is then completed. So the end of the text is
held back for exactly as long as it is the beginning of some stop string::

    stop "DEFGHIJ"   push "abcDEF" → "abc"   push "Gx" → "DEFGx"
                     push "DEFGHI" → ""      push "J…" → "", found

The search is Knuth–Morris–Pratt, one automaton a stop string: each character is looked at once, however the text is
cut into pieces, and so the result does not depend on how it is cut. Of several stop strings the one whose last
character comes first is found, and of those that end together the longest.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """The stop strings of one request.

    Args:
        stop: non-empty strings.
        include: whether the text that is let through ends with the stop string, or before it.
    """

    def __init__(self, stop: Sequence[str], include: bool) -> None:
        # The longest first, so that of those that end together the longest is seen first.
        self._automata = [_Automaton(text) for text in sorted(stop, key=len, reverse=True)]
        self._include = include
        self._held = ""

    def push(self, text: str, *, armed: bool = True) -> tuple[str, str | None]:
        """Take the next piece of text.

        Args:
            text: the piece.
            armed: whether a stop string that ends in this piece counts.

        Returns:
            The text that is certain to stand before any stop string, and the stop string if one was found; then what
            follows it is gone, and the object is not used again.
        """
        if not self._automata:
            return text, None
        behind = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            complete = [automaton.text for automaton in self._automata if automaton.advance(char)]
            if complete and armed:
                return behind[: end if self._include else end - len(complete[0])], complete[0]
        certain = len(behind) - max(automaton.matched for automaton in self._automata)
        self._held = behind[certain:]
        return behind[:certain], None

    def flush(self) -> str:
        """The text still held back, once it is clear that nothing follows."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """Knuth, Morris, Pratt (1977): how much of one string the text read so far ends with."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._fallback = _borders(text)

    def advance(self, char: str) -> bool:
        """Read one character; whether the whole string ends with it."""
        matched = self.matched
        while matched and self.text[matched] != char:
            matched = self._fallback[matched - 1]
        matched += self.text[matched] == char
        complete = matched == len(self.text)
        self.matched = self._fallback[-1] if complete else matched
        return complete


def _borders(text: str) -> list[int]:
    """For each prefix the length of its longest proper suffix that is also its prefix."""
    borders = [0] * len(text)
    length = 0
    for end in range(1, len(text)):
        while length and text[length] != text[end]:
            length = borders[length - 1]
        length += text[length] == text[end]
        borders[end] = length
    return borders
