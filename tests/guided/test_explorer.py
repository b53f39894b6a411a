"""The grammar explorer: automata of small grammars, and the bounds within which they are drawn."""

from __future__ import annotations

import itertools

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.automaton import Automaton, label_of
from engine.guided.ebnf import is_productive, literal, parse
from engine.guided.explorer import explore
from engine.guided.walk import AutomatonWalk


def drawn(grammar: str, max_states: int = 64) -> Automaton:
    automaton = explore(grammar, max_states)
    assert automaton is not None
    return automaton


def arrows(automaton: Automaton) -> list[str]:
    return [f"{edge.source} {edge.label} {edge.target}" for edge in automaton.edges]


def accepts(automaton: Automaton, text: str) -> bool:
    walk = AutomatonWalk(automaton)
    walk.read(text.encode())
    return walk.state in automaton.accepting


def test_a_choice_shares_its_beginning_and_its_end() -> None:
    automaton = drawn('root ::= (("yes") | ("yeah"))')
    assert arrows(automaton) == ["0 y 1", "1 e 2", "2 a 3", "2 s 4", "3 h 4"]
    assert automaton.accepting == (4,)


def test_equivalent_states_are_merged() -> None:
    # Two rules spelled apart that say the same, behind different characters.
    automaton = drawn('root ::= (("a" b) | ("c" d))\nb ::= ([0-9] [0-9])\nd ::= (([0-4] [0-9]) | ([5-9] [0-9]))')
    assert arrows(automaton) == ["0 [ac] 1", "1 [0-9] 2", "2 [0-9] 3"]


def test_recursion_on_the_right_is_a_loop() -> None:
    automaton = drawn("root ::= (([a-z] root) | ([a-z]))")
    assert arrows(automaton) == ["0 [a-z] 1", "1 [a-z] 1"]


def test_nesting_is_drawn_as_far_as_the_limit_goes() -> None:
    automaton = drawn('root ::= (("(" root ")") | ("x"))', max_states=12)
    assert automaton.num_states == 12
    assert automaton.beyond == 11
    assert accepts(automaton, "((x))")
    assert not accepts(automaton, "((x)")
    walk = AutomatonWalk(automaton)
    assert walk.read(b"(" * 50) == automaton.beyond
    assert walk.read(b"x)))") == automaton.beyond


def test_what_cannot_be_drawn_is_not() -> None:
    assert explore('root ::= ("" | (root "a"))', 64) is None
    assert explore("root ::= Token(3)", 64) is None
    assert explore("root ::= (nobody)", 64) is None


def test_tags_may_come_anywhere_in_a_text() -> None:
    grammar = """triggered ::= ((">" inner "</f>"))
inner ::= (("1") | ("2"))
tags ::= TagDispatch(
  ("<f", triggered),
  loop_after_dispatch=true,
  excludes=()
)
root ::= ((tags))"""
    automaton = drawn(grammar)
    for text in ("", "any text < f", "a<<f>1</f>b<f>2</f>"):
        assert accepts(automaton, text), text
    for text in ("a<f", "<f>3</f>", "<f>1</f"):
        assert not accepts(automaton, text), text


def test_a_token_may_end_in_the_middle_of_a_character() -> None:
    walk = AutomatonWalk(drawn(r'root ::= ("\xe9" "!")'))
    first, second = "é".encode()[:1], "é".encode()[1:]
    assert walk.read(first) == 0
    assert walk.read(second) == 1
    assert walk.read(b"!") == 2
    assert walk.read(b"?") is None


@pytest.mark.parametrize(
    ("ranges", "label"),
    [
        ([(97, 97)], "a"),
        ([(32, 32)], "␣"),
        ([(48, 57), (97, 122)], "[0-9a-z]"),
        ([(0, 33), (35, 0x10FFFF)], '[^"]'),
        ([(0, 0x10FFFF)], "any"),
        ([(93, 94)], r"[\]\^]"),
        ([(10, 10), (0xE9, 0xE9)], r"[\né]"),
    ],
)
def test_labels_are_what_a_regular_expression_would_say(ranges: list[tuple[int, int]], label: str) -> None:
    assert label_of(ranges) == label


def test_a_grammar_that_no_text_matches_is_found() -> None:
    assert not is_productive(parse('root ::= (("a" root))'))
    assert not is_productive(parse("root ::= (root)"))
    assert is_productive(parse('root ::= (("a" root) | "")'))
    assert is_productive(parse('root ::= ((dead{0, 3}))\ndead ::= ("x" dead)'))


@given(st.text(max_size=12))
def test_a_literal_reads_back_as_its_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert accepts(drawn(f"root ::= ({literal(text)})"), text)


PIECES = st.sampled_from(["a", "b", "[ab]", "(a|ba)", "a*", "(ab)*", "b?", "[^a]", "(a|b|ab){1,2}"])


@settings(max_examples=60, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=4))
def test_an_automaton_accepts_what_the_expression_matches(pieces: list[str]) -> None:
    automaton = drawn("root ::= (" + " ".join(map(_as_ebnf, pieces)) + ")", max_states=256)
    assert automaton.beyond is None
    pattern = regex.compile("".join(pieces))
    for length in range(5):
        for letters in itertools.product("abc", repeat=length):
            text = "".join(letters)
            assert accepts(automaton, text) == bool(pattern.fullmatch(text)), text


def _as_ebnf(piece: str) -> str:
    spelled = {"a": '"a"', "b": '"b"', "(a|ba)": '("a" | "ba")', "a*": '"a"*', "(ab)*": '("ab")*', "b?": '"b"?'}
    return spelled.get(piece, piece).replace("(a|b|ab){1,2}", '("a" | "b" | "ab"){1, 2}')
