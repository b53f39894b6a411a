"""Follows an output along the automaton of its grammar, to name the state it is in."""

from __future__ import annotations

import bisect
import codecs

from engine.automaton import Automaton


class AutomatonWalk:
    """Where one output stands.

    A token may end in the middle of a character: until the rest of it is there, the output stays in the state before.

    Args:
        automaton: of its grammar.
    """

    def __init__(self, automaton: Automaton) -> None:
        self.state: int | None = 0
        """None once it has taken a step that is not drawn."""
        self._beyond = automaton.beyond
        self._steps: list[tuple[list[int], list[tuple[int, int]]]] = [([], []) for _ in range(automaton.num_states)]
        runs = ((edge.source, first, last, edge.target) for edge in automaton.edges for first, last in edge.characters)
        for source, first, last, target in sorted(runs):
            firsts, ends = self._steps[source]
            firsts.append(first)
            ends.append((last, target))
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def read(self, piece: bytes) -> int | None:
        """Go on with the bytes of a token; returns the state it leads to."""
        for char in self._decoder.decode(piece):
            self.state = self._after(ord(char))
        return self.state

    def _after(self, code_point: int) -> int | None:
        if self.state is None or self.state == self._beyond:
            return self.state
        firsts, ends = self._steps[self.state]
        at = bisect.bisect_right(firsts, code_point) - 1
        if at < 0 or code_point > ends[at][0]:
            return None
        return ends[at][1]
