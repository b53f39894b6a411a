"""How the fuzzer says that something is wrong."""

from __future__ import annotations

from sim.invariants import Violation


class Broken(Exception):
    """An invariant does not hold."""

    def __init__(self, violation: Violation) -> None:
        self.violation = violation
        super().__init__(f"{violation.invariant}: {violation.sentence}")


def broken(invariant: str, sentence: str) -> Broken:
    """Something is wrong that no event shows."""
    return Broken(Violation(invariant, 0, 0, sentence))
