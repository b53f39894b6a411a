"""Compiles grammars for a vocabulary."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.automaton import Automaton
from engine.config import GuidedDecodingConfig
from engine.frontend.tokenizer import Tokenizer
from engine.guided.errors import GrammarError
from engine.guided.explorer import explore
from engine.guided.grammars import make_grammar, reason
from engine.guided_decoding import GrammarSpec

if TYPE_CHECKING:
    import xgrammar


@dataclass(slots=True)
class CompiledGrammar:
    """A grammar, ready to be walked."""

    compiled: xgrammar.CompiledGrammar
    automaton: Automaton | None
    """To draw it; None if that was not asked for, or cannot be done."""
    num_bytes: int
    """What it takes, by the compiler's own account."""
    is_drawn: bool = False
    """Whether the trace has its automaton."""


class GrammarCompiler:
    """What xgrammar compiles, for the vocabulary of a model.

    Args:
        tokenizer: the model's tokenizer. Special tokens steer the model and are no text: no grammar allows them.
        vocab_size: width of the model's logits; tokens that the tokenizer does not know are never allowed.
        eos_token_ids: what may follow a text that is complete.
        config: limits.
        draws: whether to make automata of the grammars.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        config: GuidedDecodingConfig,
        *,
        draws: bool,
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.eos_token_ids = list(eos_token_ids)
        self._config = config
        self._draws = draws
        self._compiler: xgrammar.GrammarCompiler | None = None
        self._lock = threading.Lock()

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Compile a grammar; may take seconds, and cannot be interrupted. May be called from several threads.

        Raises:
            GrammarError: it does not compile, matches nothing, or is too large.
        """
        grammar = make_grammar(spec, self._config.max_grammar_bytes)
        try:
            compiled = self._xgrammar().compile_grammar(grammar)
        except (RuntimeError, MemoryError) as error:
            raise GrammarError(reason(error)) from error
        num_bytes, most = compiled.memory_size_bytes, self._config.grammar_cache_bytes
        if num_bytes > most:
            raise GrammarError(f"compiled, the grammar takes {num_bytes:,} bytes, grammar_cache_bytes allows {most:,}")
        automaton = explore(str(grammar), self._config.max_automaton_states) if self._draws else None
        return CompiledGrammar(compiled, automaton, num_bytes)

    def _xgrammar(self) -> xgrammar.GrammarCompiler:
        with self._lock:
            if self._compiler is None:
                self._compiler = self._make()
            return self._compiler

    def _make(self) -> xgrammar.GrammarCompiler:
        import xgrammar

        known = min(self.vocab_size, self.tokenizer.vocab_size)
        no_text = b""
        vocabulary = [
            no_text if self.tokenizer.is_special(token_id) else self.tokenizer.token_bytes(token_id)
            for token_id in range(known)
        ]
        vocabulary += [no_text] * (self.vocab_size - known)
        info = xgrammar.TokenizerInfo(
            vocabulary, xgrammar.VocabType.RAW, vocab_size=self.vocab_size, stop_token_ids=self.eos_token_ids
        )
        return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
