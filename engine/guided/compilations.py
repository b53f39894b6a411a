"""Compilations in threads of their own, within limits; what was compiled is kept for the next who asks.

A compilation cannot be interrupted. So no request waits for one longer than the time allowed: it ends with an error,
and the compilation, should it ever end, serves whoever asks next. No more than a few run at once.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from engine.config import GuidedDecodingConfig
from engine.guided.compiler import CompiledGrammar
from engine.guided.errors import GrammarError
from engine.guided_decoding import GrammarSpec

#: A thread that compiles is given this long to end when the engine closes, in seconds.
_LAST_WAIT = 1.0


class CompilationAnswer(NamedTuple):
    """What became of a request's grammar."""

    serial: int
    compiled: CompiledGrammar | None
    """None if it cannot be used."""
    why: str = ""


class _Waiting(NamedTuple):
    spec: GrammarSpec
    deadline: float


class Compilations:
    """Called from one thread, the loop's; compiles in others.

    Args:
        compile_grammar: compiles one; raises GrammarError if it cannot.
        config: how many at once, how long, and how much to keep.
    """

    def __init__(self, compile_grammar: Callable[[GrammarSpec], CompiledGrammar], config: GuidedDecodingConfig) -> None:
        self._compile = compile_grammar
        self._config = config
        self._changed = threading.Condition()
        # All below belongs to the condition's lock.
        self._waiting: dict[int, _Waiting] = {}
        self._cache: OrderedDict[GrammarSpec, CompiledGrammar] = OrderedDict()
        self._failures: dict[GrammarSpec, str] = {}
        self._started: set[GrammarSpec] = set()
        self._todo: queue.SimpleQueue[GrammarSpec | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self, serial: int, spec: GrammarSpec) -> None:
        """Compile a request's grammar, unless that is done or being done already."""
        with self._changed:
            self._waiting[serial] = _Waiting(spec, time.monotonic() + self._config.grammar_compile_timeout)
            if spec in self._cache or spec in self._started:
                return
            self._started.add(spec)
            self._todo.put(spec)
            if len(self._threads) < min(self._config.max_compiling_grammars, len(self._started)):
                thread = threading.Thread(target=self._work, name="grammar compiler", daemon=True)
                self._threads.append(thread)
                thread.start()

    def forget(self, serial: int) -> None:
        """Nobody waits for this request's grammar any more."""
        with self._changed:
            self._waiting.pop(serial, None)

    def take_answers(self) -> list[CompilationAnswer]:
        """Whose grammars are ready, and whose will never be; each request is answered once."""
        with self._changed:
            now = time.monotonic()
            answers = [answer for serial in self._waiting if (answer := self._answer(serial, now)) is not None]
            for answer in answers:
                del self._waiting[answer.serial]
            still_asked = {waiting.spec for waiting in self._waiting.values()}
            self._failures = {spec: why for spec, why in self._failures.items() if spec in still_asked}
        return answers

    def wait(self, seconds: float) -> None:
        """Sleep until there is an answer to take, at most so long; not at all if nobody waits for one."""
        with self._changed:
            if self._waiting and not self._any_answer():
                soonest = min(waiting.deadline for waiting in self._waiting.values()) - time.monotonic()
                self._changed.wait(max(0.0, min(seconds, soonest)))

    def shutdown(self) -> None:
        """End the threads; one in the middle of a compilation is left behind if it takes too long."""
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            thread.join(_LAST_WAIT)

    def _any_answer(self) -> bool:
        now = time.monotonic()
        return any(self._answer(serial, now) is not None for serial in self._waiting)

    def _answer(self, serial: int, now: float) -> CompilationAnswer | None:
        spec, deadline = self._waiting[serial]
        compiled = self._cache.get(spec)
        if compiled is not None:
            self._cache.move_to_end(spec)
            return CompilationAnswer(serial, compiled)
        if spec in self._failures:
            return CompilationAnswer(serial, None, self._failures[spec])
        if now >= deadline:
            longest = self._config.grammar_compile_timeout
            return CompilationAnswer(serial, None, f"not compiled within grammar_compile_timeout, {longest:g} s")
        return None

    def _work(self) -> None:
        while (spec := self._todo.get()) is not None:
            with self._changed:
                if all(waiting.spec != spec for waiting in self._waiting.values()):
                    self._started.discard(spec)
                    continue
            compiled, why = self._try(spec)
            with self._changed:
                self._started.discard(spec)
                if compiled is None:
                    self._failures[spec] = why
                else:
                    self._keep(spec, compiled)
                self._changed.notify_all()

    def _try(self, spec: GrammarSpec) -> tuple[CompiledGrammar | None, str]:
        try:
            return self._compile(spec), ""
        except GrammarError as error:
            return None, str(error)
        except ImportError as error:
            return None, f"{error.name or error} is not installed"
        except Exception as error:  # noqa: BLE001 - whoever asked for it is told; the thread lives on
            return None, f"{type(error).__name__}: {error}"

    def _keep(self, spec: GrammarSpec, compiled: CompiledGrammar) -> None:
        """Keep a grammar, and let go of those used least recently that there is no room for beside it."""
        self._cache[spec] = compiled
        room = self._config.grammar_cache_bytes
        asked = {waiting.spec for waiting in self._waiting.values()}
        for old in list(self._cache):
            if sum(each.num_bytes for each in self._cache.values()) <= room:
                return
            if old not in asked:
                del self._cache[old]
