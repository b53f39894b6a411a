"""Where the events of an episode go: every invariant looks at every one of them, the moment it happens."""

from __future__ import annotations

import msgspec

from engine.trace.events import AnyEvent, Event, Header
from engine.trace.file import Trace
from sim.fuzz.failure import Broken
from sim.fuzz.situations import Situations
from sim.invariants import InvariantChecker


class Watcher:
    """An event sink that raises `Broken` out of the very call that breaks an invariant.

    Args:
        header: of the episode.
        situations: where to count.
        record: keep the events, encoded at once: their lists may be the core's own, and change.
    """

    def __init__(self, header: Header, situations: Situations, *, record: bool = False) -> None:
        self.step = 0
        self.checker = InvariantChecker(header)
        self._header = header
        self._situations = situations
        self._seq = 0
        self._lines: list[bytes] | None = [] if record else None
        self._encoder = msgspec.json.Encoder()

    def emit(self, event: Event) -> None:
        """Take one event.

        Raises:
            Broken: it breaks an invariant.
        """
        self._seq += 1
        event.seq, event.step = self._seq, self.step
        if self._lines is not None:
            self._lines.append(self._encoder.encode(event))
        if self.checker.stopped_at is None:
            self._situations.see(self.checker.state, event)
        for violation in self.checker.feed(event):
            raise Broken(violation)

    def audit(self) -> None:
        """Look at the whole state.

        Raises:
            Broken: it breaks an invariant.
        """
        for violation in self.checker.audit():
            raise Broken(violation)

    def trace(self) -> Trace:
        """What was recorded, as a reader of its file would get it."""
        decoder = msgspec.json.Decoder(AnyEvent)
        header = msgspec.json.decode(msgspec.json.encode(self._header), type=Header)
        return Trace(header, [decoder.decode(line) for line in self._lines or []])
