"""The threads that compile: what is compiled once, what is kept, and who waits how long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from engine.config import GuidedDecodingConfig
from engine.guided.compilations import CompilationAnswer, Compilations
from engine.guided.compiler import CompiledGrammar
from engine.guided.errors import GrammarError
from engine.guided_decoding import GrammarSpec

SOON = 20.0


def spec(text: str) -> GrammarSpec:
    return GrammarSpec(kind="regex", text=text)


class Workshop:
    """A compiler that can be held up, and its threads."""

    def __init__(self, **limits: Any) -> None:
        self.compiled: list[str] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.compilations = Compilations(self._compile, GuidedDecodingConfig(**limits))

    def _compile(self, grammar: GrammarSpec) -> CompiledGrammar:
        self.compiled.append(grammar.text)
        if grammar.text.startswith("slow"):
            assert self.may_go_on.wait(SOON)
        if grammar.text == "bad":
            raise GrammarError("unbalanced bracket")
        if grammar.text == "broken":
            raise MemoryError("too much")
        return CompiledGrammar(cast("Any", grammar.text), None, num_bytes=len(grammar.text))

    def close(self) -> None:
        """End the threads, however long that takes."""
        threads = list(self.compilations._threads)
        self.compilations.shutdown()
        for thread in threads:
            thread.join(SOON)

    def answers(self, number: int) -> dict[int, CompilationAnswer]:
        """The next answers, when they are there."""
        answers: dict[int, CompilationAnswer] = {}
        while len(answers) < number:
            self.compilations.wait(SOON)
            answers |= {answer.serial: answer for answer in self.compilations.take_answers()}
        return answers


@pytest.fixture
def workshop() -> Iterator[Callable[..., Workshop]]:
    opened: list[Workshop] = []

    def open_one(**limits: Any) -> Workshop:
        opened.append(Workshop(**limits))
        return opened[-1]

    yield open_one
    for each in opened:
        each.may_go_on.set()
        each.compilations.shutdown()


def test_equal_grammars_are_compiled_once(workshop: Callable[..., Workshop]) -> None:
    shop = workshop()
    for serial in range(3):
        shop.compilations.start(serial, spec("abc"))
    answers = shop.answers(3)
    assert len({id(answer.compiled) for answer in answers.values()}) == 1
    shop.compilations.start(3, spec("abc"))
    assert shop.answers(1)[3].compiled is answers[0].compiled
    assert shop.compiled == ["abc"]


def test_a_failure_is_told_to_each_and_forgotten(workshop: Callable[..., Workshop]) -> None:
    shop = workshop()
    shop.compilations.start(0, spec("bad"))
    shop.compilations.start(1, spec("bad"))
    shop.compilations.start(2, spec("good"))
    answers = shop.answers(3)
    assert [answers[serial].why for serial in range(3)] == ["unbalanced bracket", "unbalanced bracket", ""]
    shop.compilations.start(3, spec("bad"))
    assert shop.answers(1)[3].why == "unbalanced bracket"
    assert shop.compiled.count("bad") == 2


def test_an_unforeseen_error_is_the_reason_and_the_thread_lives_on(workshop: Callable[..., Workshop]) -> None:
    shop = workshop(max_compiling_grammars=1)
    shop.compilations.start(0, spec("broken"))
    assert shop.answers(1)[0].why == "MemoryError: too much"
    shop.compilations.start(1, spec("good"))
    assert shop.answers(1)[1].compiled is not None


def test_nobody_waits_longer_than_allowed(workshop: Callable[..., Workshop]) -> None:
    shop = workshop(grammar_compile_timeout=0.05, max_compiling_grammars=1)
    shop.may_go_on.clear()
    shop.compilations.start(0, spec("slow"))
    shop.compilations.start(1, spec("slow too"))
    answers = shop.answers(2)
    assert {answer.why for answer in answers.values()} == {"not compiled within grammar_compile_timeout, 0.05 s"}
    # The late result serves who asks next.
    shop.may_go_on.set()
    shop.close()
    shop.compilations.start(2, spec("slow"))
    assert shop.compilations.take_answers()[0].compiled is not None


def test_what_nobody_waits_for_any_more_is_not_begun(workshop: Callable[..., Workshop]) -> None:
    shop = workshop(max_compiling_grammars=1)
    shop.may_go_on.clear()
    shop.compilations.start(0, spec("slow"))
    shop.compilations.start(1, spec("behind"))
    shop.compilations.forget(1)
    shop.may_go_on.set()
    assert list(shop.answers(1)) == [0]
    shop.close()
    assert shop.compiled == ["slow"]


def test_no_more_than_a_few_run_at_once(workshop: Callable[..., Workshop]) -> None:
    shop = workshop(max_compiling_grammars=2)
    shop.may_go_on.clear()
    for serial in range(5):
        shop.compilations.start(serial, spec(f"slow {serial}"))
    assert len(shop.compilations._threads) == 2
    shop.may_go_on.set()
    assert len(shop.answers(5)) == 5


def test_who_has_gone_gets_no_answer(workshop: Callable[..., Workshop]) -> None:
    shop = workshop()
    shop.compilations.start(0, spec("gone"))
    shop.compilations.start(1, spec("here"))
    shop.compilations.forget(0)
    assert list(shop.answers(1)) == [1]
    assert shop.compilations.take_answers() == []
    shop.compilations.wait(SOON)  # returns at once: nobody waits for anything


def test_what_was_used_least_recently_makes_room(workshop: Callable[..., Workshop]) -> None:
    shop = workshop(grammar_cache_bytes=10)
    for serial, text in enumerate(["aaaa", "bbbb", "aaaa", "cccc"]):
        shop.compilations.start(serial, spec(text))
        assert shop.answers(1)[serial].compiled is not None
    assert shop.compiled == ["aaaa", "bbbb", "cccc"]
    for serial, text in enumerate(["aaaa", "bbbb"], start=4):
        shop.compilations.start(serial, spec(text))
        shop.answers(1)
    assert shop.compiled == ["aaaa", "bbbb", "cccc", "bbbb"]


def test_overdue_compilations_keep_nobody_else_waiting(workshop: Callable[..., Workshop]) -> None:
    shop = workshop(max_compiling_grammars=2, grammar_compile_timeout=2.0)
    shop.may_go_on.clear()
    for serial in range(2):
        shop.compilations.start(serial, spec(f"slow {serial}"))
    assert all(answer.compiled is None for answer in shop.answers(2).values())
    for serial in range(2, 6):
        shop.compilations.start(serial, spec(f"quick {serial}"))
        (answer,) = shop.answers(1).values()
        assert answer.compiled is not None, answer.why
    shop.may_go_on.set()
