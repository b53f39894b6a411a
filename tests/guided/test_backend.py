"""The backend that the core asks: masks, also behind drafts, and the states that the trace is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from engine.config import GuidedDecodingConfig
from engine.core.seams import AutomatonSteps
from engine.frontend.tokenizer import Tokenizer
from engine.guided.compiler import GrammarCompiler
from engine.guided.xgrammar_backend import GrammarNews, XGrammarBackend
from engine.guided_decoding import GrammarSpec, GuidedDecodingParams
from kernels.logits_bitmask import expand_bitmask

EOS = 2
#: Not a multiple of 32, and more than the tokenizer knows: logits may be padded.
VOCAB_SIZE = 2050


@pytest.fixture
def backend(tokenizer: Tokenizer) -> Iterator[XGrammarBackend]:
    config = GuidedDecodingConfig()
    compiler = GrammarCompiler(tokenizer, VOCAB_SIZE, [EOS, 4], config, draws=True)
    backend = XGrammarBackend(compiler, config)
    yield backend
    backend.shutdown()


@pytest.fixture
def guided(backend: XGrammarBackend) -> Callable[[int, str], None]:
    """Lets a request in, and waits for its grammar, a regular expression."""

    def enter(serial: int, regex: str) -> None:
        backend.grammar_init(serial, GrammarSpec(kind="regex", text=regex))
        while not any(news.serial == serial and news.why_failed is None for news in backend.take_news()):
            backend.wait(20.0)

    return enter


def masks(backend: XGrammarBackend, *rows: tuple[int, tuple[int, ...]]) -> list[set[int]]:
    words = backend.fill_bitmask(list(rows)).words
    return [set(row.nonzero().flatten().tolist()) for row in expand_bitmask(words, VOCAB_SIZE)]


def pieces(tokenizer: Tokenizer, mask: set[int]) -> set[bytes]:
    return {b"EOS" if token_id in (EOS, 4) else tokenizer.token_bytes(token_id) for token_id in mask}


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Letter by letter."""
    of_piece = {tokenizer.token_bytes(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    return [of_piece[letter.encode()] for letter in text]


def test_a_mask_allows_what_can_go_on(
    backend: XGrammarBackend, guided: Callable[[int, str], None], tokenizer: Tokenizer
) -> None:
    guided(0, "ab?")
    (mask,) = masks(backend, (0, ()))
    assert b"a" in pieces(tokenizer, mask) <= {b"a", b"ab"}
    backend.accept_tokens(0, ids(tokenizer, "a"))
    (mask,) = masks(backend, (0, ()))
    assert pieces(tokenizer, mask) == {b"b", b"EOS"}
    assert mask.issuperset({EOS, 4})


def test_no_grammar_allows_special_or_unknown_tokens(
    backend: XGrammarBackend, guided: Callable[[int, str], None], tokenizer: Tokenizer
) -> None:
    guided(0, r"(.|\n)*")
    (mask,) = masks(backend, (0, ()))
    special = {token_id for token_id in range(tokenizer.vocab_size) if tokenizer.is_special(token_id)}
    assert special > {EOS, 4}
    assert mask & special == {EOS, 4}
    assert max(mask) < tokenizer.vocab_size


def test_a_mask_per_draft_and_one_behind_and_the_automaton_stays_where_it_was(
    backend: XGrammarBackend, guided: Callable[[int, str], None], tokenizer: Tokenizer
) -> None:
    guided(0, "a[0-9]b")
    guided(1, "x")
    first, behind_a, behind_digit, behind_b, other = masks(backend, (0, tuple(ids(tokenizer, "a7b"))), (1, ()))
    assert pieces(tokenizer, behind_digit) == {b"b"}
    assert pieces(tokenizer, behind_b) == {b"EOS"}
    assert b"7" in pieces(tokenizer, behind_a)
    assert pieces(tokenizer, other) == {b"x"}
    assert masks(backend, (0, ()))[0] == first


def test_behind_a_draft_that_is_not_allowed_nothing_matters(
    backend: XGrammarBackend, guided: Callable[[int, str], None], tokenizer: Tokenizer
) -> None:
    guided(0, "abc")
    drafts = tuple(ids(tokenizer, "axc"))
    first, behind_a, *rest = masks(backend, (0, drafts))
    assert drafts[1] not in behind_a  # so it is rejected there
    assert [len(mask) for mask in rest] == [VOCAB_SIZE, VOCAB_SIZE]
    assert masks(backend, (0, ()))[0] == first


def test_behind_a_draft_that_ends_the_grammar_only_an_end_may_come(
    backend: XGrammarBackend, guided: Callable[[int, str], None], tokenizer: Tokenizer
) -> None:
    guided(0, "a")
    drafts = (*ids(tokenizer, "a"), EOS, *ids(tokenizer, "b"))
    first, behind_a, behind_eos, behind_b = masks(backend, (0, drafts))
    assert pieces(tokenizer, behind_a) == {b"EOS"}
    assert behind_eos == behind_b == {EOS, 4}
    assert masks(backend, (0, ()))[0] == first


def test_where_tokens_lead_is_told(
    backend: XGrammarBackend, guided: Callable[[int, str], None], tokenizer: Tokenizer
) -> None:
    guided(0, "ab*")
    a, b = ids(tokenizer, "ab")
    assert backend.accept_tokens(0, [a]) == AutomatonSteps(0, [1], terminated=False)
    assert backend.accept_tokens(0, [b, b]) == AutomatonSteps(1, [1, 1], terminated=False)
    assert backend.accept_tokens(0, [EOS, b]) == AutomatonSteps(1, [1, 1], terminated=True)
    with pytest.raises(ValueError, match="which its grammar does not allow"):
        guided(1, "ab*")
        backend.accept_tokens(1, [b])


def test_masks_are_described_without_what_is_behind_the_vocabulary(
    backend: XGrammarBackend, guided: Callable[[int, str], None], tokenizer: Tokenizer
) -> None:
    guided(0, "ab")
    guided(1, "ab")
    bitmask = backend.fill_bitmask([(0, tuple(ids(tokenizer, "x"))), (1, ())])
    first, unused, same = backend.describe_masks(bitmask)
    assert first == same
    assert first.digest != unused.digest
    assert unused.num_allowed == VOCAB_SIZE
    words = torch.frombuffer(bytearray(first.words), dtype=torch.int32)
    assert int(expand_bitmask(words, VOCAB_SIZE).sum()) == first.num_allowed


def test_an_automaton_is_told_with_the_first_of_equal_grammars(backend: XGrammarBackend) -> None:
    spec = GuidedDecodingParams(choice=["yes", "no"]).spec()
    for serial in (0, 1):
        backend.grammar_init(serial, spec)
    told: list[GrammarNews] = []
    while len(told) < 2:
        backend.wait(20.0)
        told += backend.take_news()
    assert [news.automaton is not None for news in told] == [True, False]


def test_who_has_gone_is_forgotten_in_every_state(backend: XGrammarBackend, guided: Callable[[int, str], None]) -> None:
    guided(0, "a")
    backend.release(0)
    backend.grammar_init(1, GrammarSpec(kind="regex", text="b"))
    backend.release(1)
    assert backend.take_news() == []
    assert backend._guides == {}
