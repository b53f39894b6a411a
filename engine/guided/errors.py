"""Why a grammar cannot guide anything."""


class GrammarError(ValueError):
    """A grammar does not compile, matches nothing, or is too large; the message says which."""
