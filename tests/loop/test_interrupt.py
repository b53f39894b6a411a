"""Ctrl-C comes between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from engine.loop.interrupt import InterruptBetweenSteps


@pytest.fixture(autouse=True)
def python_handler() -> Iterator[None]:
    """Whatever the test does, Ctrl-C works as before afterwards."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_it_waits_until_it_is_asked_for() -> None:
    with InterruptBetweenSteps() as interrupt:
        interrupt.check()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_the_second_one_does_not_wait() -> None:
    with InterruptBetweenSteps():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_handler_of_the_programs_own_is_left_alone() -> None:
    seen = []
    signal.signal(signal.SIGINT, lambda signum, frame: seen.append(signum))
    with InterruptBetweenSteps() as interrupt:
        signal.raise_signal(signal.SIGINT)
        interrupt.check()
    assert seen == [signal.SIGINT]


def test_another_thread_may_use_it() -> None:
    def use() -> None:
        with InterruptBetweenSteps() as interrupt:
            interrupt.check()

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
