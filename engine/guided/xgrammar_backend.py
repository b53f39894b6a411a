"""`XGrammarBackend`: the `GrammarBackend` of the core, with xgrammar's matchers behind it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from engine.automaton import Automaton
from engine.config import GuidedDecodingConfig
from engine.core.messages import GrammarBitmask
from engine.core.seams import AutomatonSteps, MaskFacts
from engine.guided.compilations import Compilations
from engine.guided.compiler import CompiledGrammar, GrammarCompiler
from engine.guided.walk import AutomatonWalk
from engine.guided_decoding import GrammarSpec

if TYPE_CHECKING:
    from xgrammar import GrammarMatcher

_WORD_BITS = 32
_ALL_ALLOWED = -1

#: Hex digits that tell one mask of a run from another.
_DIGEST_BYTES = 8


class GrammarNews(NamedTuple):
    """A request's grammar is ready, or will never be."""

    serial: int
    automaton: Automaton | None
    """Of a grammar that is ready, if it has not been told before and can be drawn."""
    why_failed: str | None


class _Guide:
    """One request on its way through its grammar."""

    def __init__(self, grammar: CompiledGrammar, only_eos: torch.Tensor) -> None:
        from xgrammar import GrammarMatcher

        self._only_eos = only_eos
        self.matcher: GrammarMatcher = GrammarMatcher(grammar.compiled)
        self.walk = None if grammar.automaton is None else AutomatonWalk(grammar.automaton)

    def fill(self, bitmask: torch.Tensor, first: int, drafts: Sequence[int]) -> None:
        """Masks for the next token and behind every draft.

        A draft that is not allowed will be rejected by the mask before it, and nothing behind it matters. Behind one
        that ends the output, EOS alone is harmless.
        """
        matcher = self.matcher
        matcher.fill_next_token_bitmask(bitmask, first)
        accepted = 0
        for place, draft in enumerate(drafts, start=1):
            if matcher.is_terminated():
                bitmask[first + place] = self._only_eos
            elif accepted < place - 1 or not matcher.accept_token(draft):
                bitmask[first + place] = _ALL_ALLOWED
            else:
                accepted = place
                if matcher.is_terminated():
                    bitmask[first + place] = self._only_eos
                else:
                    matcher.fill_next_token_bitmask(bitmask, first + place)
        if accepted:
            matcher.rollback(accepted)


class XGrammarBackend:
    """Compiles off the loop and walks on it.

    Args:
        compiler: compiles grammars for the model's vocabulary.
        config: how many at once, how long, and how much to keep.
    """

    def __init__(self, compiler: GrammarCompiler, config: GuidedDecodingConfig) -> None:
        self._compilations = Compilations(compiler.compile, config)
        self._token_bytes = compiler.tokenizer.token_bytes
        self._vocab_size = compiler.vocab_size
        self._guides: dict[int, _Guide] = {}
        self._only_eos = _mask_of(compiler.eos_token_ids, self._vocab_size)
        self._grammar_bitmask = torch.empty((0, -(-self._vocab_size // _WORD_BITS)), dtype=torch.int32)

    # --- what the loop asks ---------------------------------------------------------------------------------------

    def take_news(self) -> list[GrammarNews]:
        """Whose grammars are ready, and whose will never be, since the last call; of living requests only."""
        news: list[GrammarNews] = []
        for serial, grammar, why in self._compilations.take_answers():
            if grammar is None:
                news.append(GrammarNews(serial, None, why))
            else:
                self._guides[serial] = self._guide(grammar)
                news.append(GrammarNews(serial, None if grammar.is_drawn else grammar.automaton, None))
                grammar.is_drawn = True
        return news

    def wait(self, seconds: float) -> None:
        """Sleep until there is news, at most so long; not at all if no grammar is being compiled."""
        self._compilations.wait(seconds)

    def shutdown(self) -> None:
        """End the threads that compile."""
        self._compilations.shutdown()

    # --- what the core asks ---------------------------------------------------------------------------------------

    def grammar_init(self, serial: int, grammar: GrammarSpec) -> None:
        """Start to compile a request's grammar; `take_news` will tell what became of it."""
        self._compilations.start(serial, grammar)

    def fill_bitmask(self, rows: list[tuple[int, tuple[int, ...]]]) -> GrammarBitmask:
        """The allowed tokens of each (serial, draft tokens): one mask per draft, and one behind the last.

        The words are filled anew by the next call: the step must have been sampled by then.
        """
        num_masks = sum(1 + len(drafts) for _, drafts in rows)
        if num_masks > len(self._grammar_bitmask):
            self._grammar_bitmask = torch.empty((num_masks, self._grammar_bitmask.shape[1]), dtype=torch.int32)
        words, first = self._grammar_bitmask[:num_masks], 0
        for serial, drafts in rows:
            self._guide_of(serial).fill(words, first, drafts)
            first += 1 + len(drafts)
        return GrammarBitmask(serials=[serial for serial, _ in rows], words=words)

    def describe_masks(self, bitmask: GrammarBitmask) -> list[MaskFacts]:
        """How much each mask allows, a name for it, and its words as bytes."""
        words = bitmask.words.numpy().copy()
        tail = self._vocab_size % _WORD_BITS
        if tail:
            words[:, -1] &= (1 << tail) - 1
        counts = np.bitwise_count(words.view(np.uint32)).sum(axis=1).tolist()
        rows = [row.astype("<i4", copy=False).tobytes() for row in words]
        return [
            MaskFacts(hashlib.blake2b(row, digest_size=_DIGEST_BYTES).hexdigest(), count, row)
            for row, count in zip(rows, counts, strict=True)
        ]

    def accept_tokens(self, serial: int, token_ids: list[int]) -> AutomatonSteps:
        """Advance a request over tokens that its masks allowed.

        Raises:
            ValueError: a token that they did not allow.
        """
        guide = self._guide_of(serial)
        walk, matcher = guide.walk, guide.matcher
        before = walk.state if walk is not None else None
        after: list[int | None] = []
        for token_id in token_ids:
            if not matcher.is_terminated():
                if not matcher.accept_token(token_id):
                    raise ValueError(f"request {serial} has put out token {token_id}, which its grammar does not allow")
                if walk is not None and not matcher.is_terminated():
                    walk.read(self._token_bytes(token_id))
            after.append(None if walk is None else walk.state)
        return AutomatonSteps(before, after, matcher.is_terminated())

    def release(self, serial: int) -> None:
        """Forget a request, whether its grammar is ready or not."""
        self._compilations.forget(serial)
        self._guides.pop(serial, None)

    def _guide_of(self, serial: int) -> _Guide:
        return self._guides[serial]

    def _guide(self, grammar: CompiledGrammar) -> _Guide:
        return _Guide(grammar, self._only_eos)


class RecomputingXGrammarBackend(XGrammarBackend):
    """For a replay: the trace tells which grammars were ready and when, so one is compiled when it is first used."""

    def __init__(self, compiler: GrammarCompiler, config: GuidedDecodingConfig) -> None:
        super().__init__(compiler, config)
        self._compile = compiler.compile
        self._asked: dict[int, GrammarSpec] = {}

    def grammar_init(self, serial: int, grammar: GrammarSpec) -> None:
        """Remember a request's grammar."""
        self._asked[serial] = grammar

    def release(self, serial: int) -> None:
        """Forget a request."""
        super().release(serial)
        self._asked.pop(serial, None)

    def _guide_of(self, serial: int) -> _Guide:
        if serial not in self._guides:
            self._guides[serial] = self._guide(self._compile(self._asked[serial]))
        return self._guides[serial]


def _mask_of(token_ids: Sequence[int], vocab_size: int) -> torch.Tensor:
    """The mask that allows these tokens alone."""
    words = np.zeros(-(-vocab_size // _WORD_BITS), dtype=np.uint32)
    for token_id in token_ids:
        words[token_id // _WORD_BITS] |= np.uint32(1 << token_id % _WORD_BITS)
    return torch.from_numpy(words.view(np.int32))
