"""Stop strings end the text exactly, wherever the pieces are cut, and none of their beginning gets out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.frontend.stop_strings import StopStrings

letters = st.text(alphabet="ab", max_size=30)
stops = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=3)


def run(stop: list[str], pieces: list[str], include: bool = False) -> tuple[list[str], str | None]:
    """What gets out for each piece and at the end, and what was found."""
    filter_, deltas = StopStrings(stop, include), []
    for piece in pieces:
        delta, found = filter_.push(piece)
        deltas.append(delta)
        if found is not None:
            return deltas, found
    return [*deltas, filter_.flush()], None


def by_definition(stop: list[str], text: str, include: bool) -> tuple[str, str | None]:
    """The stop string that is complete first, the longest of those; found by trying every place."""
    for end in range(len(text) + 1):
        complete = [each for each in stop if text[:end].endswith(each)]
        if complete:
            found = max(complete, key=len)
            return text[: end if include else end - len(found)], found
    return text, None


@given(stop=stops, text=letters, include=st.booleans(), data=st.data())
def test_the_result_is_the_definition_however_the_text_is_cut(
    stop: list[str], text: str, include: bool, data: Any
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    deltas, found = run(stop, pieces, include)
    assert ("".join(deltas), found) == by_definition(stop, text, include)


@given(stop=stops, text=letters)
def test_no_beginning_of_a_stop_string_gets_out_and_no_more_is_held_than_that(stop: list[str], text: str) -> None:
    filter_, out = StopStrings(stop, False), ""
    for place, char in enumerate(text):
        delta, found = filter_.push(char)
        out += delta
        if found is not None:
            return
        begun = max(length for each in stop for length in range(len(each)) if text[: place + 1].endswith(each[:length]))
        assert out == text[: place + 1 - begun]


def test_a_stop_string_over_several_tokens() -> None:
    assert run(["DEFGHIJ"], ["abc", "DEF", "G", "HI", "J", "no"]) == (["abc", "", "", "", ""], "DEFGHIJ")


def test_a_stop_string_inside_a_token() -> None:
    assert run(["DE"], ["abc", "xDEF"]) == (["abc", "x"], "DE")
    assert run(["DE"], ["abc", "xDEF"], include=True) == (["abc", "xDE"], "DE")


def test_what_turns_out_not_to_be_a_stop_string_gets_out() -> None:
    assert run(["DEFGHIJ"], ["abcDEF", "Gx", "DEFGHI"]) == (["abc", "DEFGx", "", "DEFGHI"], None)


@pytest.mark.parametrize(("armed_from", "expected"), [(0, ("", "ab")), (1, ("", "ab")), (2, ("abc", "ab"))])
def test_a_stop_string_counts_from_the_piece_in_which_it_ends(armed_from: int, expected: tuple[str, str]) -> None:
    filter_ = StopStrings(["ab"], False)
    text = ""
    for place, piece in enumerate(["a", "bc", "ab"]):
        delta, found = filter_.push(piece, armed=place >= armed_from)
        text += delta
        if found is not None:
            break
    assert (text, found) == expected
