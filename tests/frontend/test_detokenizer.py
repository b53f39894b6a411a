"""Text comes out piece by piece, and the pieces are exactly the text."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.frontend.detokenizer import Detokenizer
from engine.frontend.tokenizer import Tokenizer

from .conftest import KINDS, Tokenizers

REPLACEMENT = "\ufffd"
BYTE_LEVEL = ("byte-level", "smollm2-135m")
every_kind = pytest.mark.parametrize("which", KINDS)


def detokenize(
    tokenizer: Tokenizer, prompt: list[int], output: list[int], skip_special_tokens: bool = True
) -> list[str]:
    """The delta of each output token, and the one of the end."""
    detokenizer = Detokenizer(tokenizer, prompt, skip_special_tokens)
    return [*map(detokenizer.push, output), detokenizer.finish()]


def in_context(tokenizer: Tokenizer, prompt: list[int], output: list[int], skip: bool) -> str:
    """What the library makes of the output behind the prompt."""
    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    return tokenizer.decode([*prompt, *output], skip_special_tokens=skip).removeprefix(before)


@every_kind
@settings(deadline=None)
@given(prompt=st.text(), output=st.text(min_size=1))
def test_the_deltas_of_a_text_add_up_to_it(
    tokenizers_by_kind: Tokenizers, which: str, prompt: str, output: str
) -> None:
    tokenizer = tokenizers_by_kind[which]
    prompt_ids = tokenizer.encode(prompt)
    output_ids = tokenizer.encode(output, add_special_tokens=False)
    deltas = detokenize(tokenizer, prompt_ids, output_ids)
    assert "".join(deltas) == in_context(tokenizer, prompt_ids, output_ids, skip=True)
    # Characters come as soon as they are complete: nothing is left for the end.
    assert deltas[-1] == ""


@every_kind
@settings(deadline=None)
@given(data=st.data())
def test_any_tokens_at_all_give_what_the_library_gives(tokenizers_by_kind: Tokenizers, which: str, data: Any) -> None:
    tokenizer = tokenizers_by_kind[which]
    ids = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12)
    prompt = data.draw(ids) + tokenizer.encode("x", add_special_tokens=False)
    output, skip = data.draw(ids), data.draw(st.booleans())
    text = "".join(detokenize(tokenizer, prompt, output, skip))
    visible = [i for i in output if not (skip and tokenizer.is_special(i))]
    spelled = b"".join(map(tokenizer.token_bytes, visible))
    assert text == spelled.decode("utf-8", errors="replace")
    if which in BYTE_LEVEL or REPLACEMENT not in text:
        assert text == in_context(tokenizer, prompt, output, skip)


@every_kind
@settings(deadline=None)
@given(data=st.data())
def test_a_text_with_nothing_before_it_begins_as_the_library_begins_it(
    tokenizers_by_kind: Tokenizers, which: str, data: Any
) -> None:
    tokenizer = tokenizers_by_kind[which]
    prompt = data.draw(st.lists(st.sampled_from(_special(tokenizer)), min_size=1, max_size=2))
    output = tokenizer.encode(data.draw(st.text(min_size=1)), add_special_tokens=False)
    assert "".join(detokenize(tokenizer, prompt, output)) == in_context(tokenizer, prompt, output, skip=True)


@every_kind
@settings(deadline=None)
@given(text=st.text(alphabet="aé你😀", min_size=1), data=st.data())
def test_a_prompt_may_end_inside_a_character(tokenizers_by_kind: Tokenizers, which: str, text: str, data: Any) -> None:
    tokenizer = tokenizers_by_kind[which]
    ids = _byte_tokens(tokenizer, text)
    cut = data.draw(st.integers(1, len(ids)))
    prompt, output = ids[:cut], ids[cut:]
    begun = b"".join(map(tokenizer.token_bytes, prompt)).decode(errors="ignore")
    assert "".join(detokenize(tokenizer, prompt, output)) == text.removeprefix(begun) if output else True


def _byte_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """Tokens of one byte each."""
    return [_one_byte_tokens(tokenizer)[byte] for byte in text.encode()]


@functools.cache
def _one_byte_tokens(tokenizer: Tokenizer) -> dict[int, int]:
    pieces = ((tokenizer.token_bytes(token_id), token_id) for token_id in range(tokenizer.vocab_size))
    return {piece[0]: token_id for piece, token_id in pieces if len(piece) == 1}


@functools.cache
def _special(tokenizer: Tokenizer) -> list[int]:
    return [token_id for token_id in range(tokenizer.vocab_size) if tokenizer.is_special(token_id)]


class TestPromptInsideACharacter:
    """E4 BD | A0 is 你; the prompt holds its first two bytes."""

    @pytest.fixture
    def ids(self, tokenizer: Tokenizer) -> list[int]:
        return _byte_tokens(tokenizer, "你")

    def test_the_output_completes_it(self, tokenizer: Tokenizer, ids: list[int]) -> None:
        x = _byte_tokens(tokenizer, "x")
        assert detokenize(tokenizer, ids[:2], [*ids[2:], *x]) == ["你", "x", ""]

    def test_the_output_does_not_complete_it(self, tokenizer: Tokenizer, ids: list[int]) -> None:
        x = _byte_tokens(tokenizer, "x")
        assert detokenize(tokenizer, ids[:2], x) == ["x", ""]

    def test_the_output_leaves_it_incomplete(self, tokenizer: Tokenizer, ids: list[int]) -> None:
        assert detokenize(tokenizer, ids[:1], ids[1:2]) == ["", REPLACEMENT]

    def test_there_is_no_output(self, tokenizer: Tokenizer, ids: list[int]) -> None:
        assert detokenize(tokenizer, ids[:2], []) == [""]

    def test_the_output_is_only_special_tokens(self, tokenizer: Tokenizer, ids: list[int]) -> None:
        special = _special(tokenizer)[0]
        assert detokenize(tokenizer, ids[:2], [special]) == ["", ""]
        assert detokenize(tokenizer, ids[:2], [special, ids[2]]) == ["", "你", ""]


def test_a_character_waits_for_its_last_byte(tokenizer: Tokenizer) -> None:
    x = _byte_tokens(tokenizer, "x")
    assert detokenize(tokenizer, x, _byte_tokens(tokenizer, "😀é")) == ["", "", "", "😀", "", "é", ""]
    assert detokenize(tokenizer, x, _byte_tokens(tokenizer, "😀")[:3]) == ["", "", "", REPLACEMENT]


def test_complete_characters_survive_a_broken_one(tokenizer: Tokenizer) -> None:
    broken = [*_byte_tokens(tokenizer, "😀"), *_byte_tokens(tokenizer, "é")[:1], *_byte_tokens(tokenizer, "x")]
    assert "".join(detokenize(tokenizer, broken[-1:], broken)) == f"😀{REPLACEMENT}x"


def test_special_tokens_are_kept_when_asked_for(tokenizer: Tokenizer) -> None:
    special = _special(tokenizer)[0]
    x = _byte_tokens(tokenizer, "x")
    kept = "".join(detokenize(tokenizer, x, [*x, special, *x], skip_special_tokens=False))
    assert kept == f"x{tokenizer.token_bytes(special).decode()}x"
    assert "".join(detokenize(tokenizer, x, [*x, special, *x])) == "xx"
