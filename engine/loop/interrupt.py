"""Ctrl-C between two steps, never in the middle of one."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class InterruptBetweenSteps:
    """Holds a SIGINT back until `check` is called, so that no step is torn in half and the engine stays usable.

    A second one is not held back, for whoever cannot wait. In a thread other than the main one, or under a handler
    that the program has installed itself, nothing changes.
    """

    def __init__(self) -> None:
        self._asked = False
        self._installed = False

    def __enter__(self) -> InterruptBetweenSteps:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_interrupt)
            self._installed = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @property
    def asked(self) -> bool:
        """Whether one has been held back."""
        return self._asked

    def check(self) -> None:
        """Raise the KeyboardInterrupt that was held back, if there is one."""
        if self._asked:
            raise KeyboardInterrupt

    def _on_interrupt(self, signum: int, frame: FrameType | None) -> None:
        self.check()
        self._asked = True
