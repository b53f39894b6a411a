"""The toy twins of the core's collaborators: what they answer is the episode's business, here they only keep account."""

from __future__ import annotations

from engine.core.messages import GrammarBitmask
from engine.sampling_params import GrammarSpec


class ToyGrammarBackend:
    """A `GrammarBackend` that allows every token, and knows who is guided."""

    def __init__(self) -> None:
        self.living: dict[int, list[int]] = {}
        """Tokens accepted, per guided request that has not been released."""

    def grammar_init(self, serial: int, grammar: GrammarSpec) -> None:
        """A guided request has come."""
        self.living[serial] = []

    def fill_bitmask(self, rows: list[tuple[int, tuple[int, ...]]]) -> GrammarBitmask:
        """Everything is allowed, to those who live."""
        return GrammarBitmask(serials=[serial for serial, _ in rows], words=None)

    def accept_tokens(self, serial: int, token_ids: list[int]) -> None:
        """A guided request has put out tokens."""
        self.living[serial] += token_ids

    def release(self, serial: int) -> None:
        """A guided request has ended."""
        del self.living[serial]
