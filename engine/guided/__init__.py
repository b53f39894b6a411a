"""Guided decoding outside the core: grammars are compiled, walked and drawn here.

`grammars` turns what a user asked for into a grammar · `compiler` compiles it for a vocabulary · `compilations` does so
in threads of its own, within limits, and keeps what was compiled · `xgrammar_backend` is the `GrammarBackend` that the
core asks · `ebnf` reads grammars, `explorer` draws their automata, `walk` follows outputs along them.

xgrammar is imported where it is used, and only then: it takes seconds. Nothing here is imported by the core.
"""
