"""`VirtualClock`: the time of a simulation, which passes only when it is told to."""

from __future__ import annotations


class VirtualClock:
    """Nanoseconds since the simulation began."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        """What a recorder stamps events with."""
        return self.now_ns

    def advance(self, nanoseconds: int) -> None:
        """Let so much time pass."""
        self.now_ns += nanoseconds

    def advance_to(self, moment_ns: int) -> None:
        """Let time pass until then; a moment that is over changes nothing."""
        self.now_ns = max(self.now_ns, moment_ns)
