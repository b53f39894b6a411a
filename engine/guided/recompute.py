"""The grammar backend with which a replay checks what a trace says of grammars."""

from __future__ import annotations

from engine.errors import TraceError
from engine.frontend.tokenizer import Tokenizer
from engine.guided.compiler import GrammarCompiler
from engine.guided.xgrammar_backend import RecomputingXGrammarBackend
from engine.models.store import resolve_model
from engine.trace.events import Header


def recomputing_backend(header: Header) -> RecomputingXGrammarBackend:
    """A backend for the vocabulary that a trace was recorded with.

    Raises:
        ModelError: the model is not at hand.
        TraceError: its tokenizer is another one now.
    """
    model = header.model
    tokenizer = Tokenizer.from_folder(resolve_model(model.name), model.name)
    if header.tokenizer != f"{tokenizer.name} sha256:{tokenizer.digest}":
        raise TraceError(f"The tokenizer of {model.name} is not the one that the trace was recorded with.")
    config = header.config.guided_decoding
    compiler = GrammarCompiler(tokenizer, model.vocab_size, model.eos_token_ids, config, draws=True)
    return RecomputingXGrammarBackend(compiler, config)
