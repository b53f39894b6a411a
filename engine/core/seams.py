"""The seams of the engine core: everything uncertain answers through one of these protocols.

Each has a real side that computes and a recorded or modelled twin in `sim` that repeats; the core cannot tell which.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from engine.core.messages import GrammarBitmask, ModelRunnerOutput, SchedulerOutput
from engine.sampling_params import GrammarSpec


class Executor(Protocol):
    """Runs the forward pass of a step, in two phases.

    They are apart because the grammar bitmask of a step may depend on the tokens of the step before, while its
    forward pass does not: the mask can be computed while the model runs.
    """

    def execute_model(self, scheduler_output: SchedulerOutput) -> None:
        """Start the forward pass of a step up to its logits."""

    def sample_tokens(self, grammar_bitmask: GrammarBitmask | None) -> ModelRunnerOutput:
        """Sample from the logits of the step started last.

        Raises:
            ForwardError: the forward pass or the sampling failed.
        """

    def shutdown(self) -> None:
        """Give back what the executor holds; it is not used again."""


class Foresight(Protocol):
    """Knows what the model will say, before it is asked."""

    def tokens(self, serial: int, position: int, count: int) -> list[int]:
        """So many tokens of a request, from a position on, its prompt included."""


class MaskFacts(NamedTuple):
    """What the trace is told of one mask."""

    digest: str
    """Hexadecimal; equal masks have the same."""
    num_allowed: int
    """Tokens of the vocabulary that it allows."""
    words: bytes
    """The mask: int32 in little-endian order, bit i of word w for token 32 w + i."""


class AutomatonSteps(NamedTuple):
    """Where tokens have led on the automaton that the trace draws of a grammar."""

    before: int | None
    """State before them; None where the automaton is not drawn."""
    after: list[int | None]
    """State after each of them."""
    terminated: bool
    """Whether EOS came where the grammar allows it: nothing may follow."""


class GrammarBackend(Protocol):
    """Compiles grammars and walks their automata."""

    def grammar_init(self, serial: int, grammar: GrammarSpec) -> None:
        """Start to compile a request's grammar. The answer comes later, as `EngineCore.grammar_ready` or
        `grammar_failed`."""

    def fill_bitmask(self, rows: list[tuple[int, tuple[int, ...]]]) -> GrammarBitmask:
        """The allowed tokens of each (serial, draft tokens): one mask before each draft, and one behind the last."""

    def describe_masks(self, bitmask: GrammarBitmask) -> list[MaskFacts] | None:
        """What the trace is told of masks just filled, one by one; None if this backend knows no masks."""

    def accept_tokens(self, serial: int, token_ids: list[int]) -> AutomatonSteps | None:
        """Advance a request's automaton over tokens that its masks allowed; None if nothing is known of it.

        Drafts are no business of it until they are accepted: masks behind drafts leave an automaton where it was.
        """

    def release(self, serial: int) -> None:
        """Forget a request."""


class KVConnector(Protocol):
    """The scheduler's side of a connector that moves KV between engines. (Its worker's side does the moving.)"""

    def get_num_new_matched_tokens(
        self, serial: int, token_ids: list[int], num_computed_tokens: int
    ) -> tuple[int, bool]:
        """How many tokens after the computed ones have their KV elsewhere, and whether they are loaded in the
        background: then the request waits until `EngineCore.kv_done` names it."""

    def update_state_after_alloc(self, serial: int, block_ids: tuple[list[int], ...], num_tokens: int) -> None:
        """Learn into which blocks the matched tokens are to be loaded.

        For a load in the background this comes once no step in flight can write these blocks any more. By then the
        request may have ended: the load is to be reported as done all the same, for only then are its blocks free.
        """

    def build_connector_meta(self, serials: list[int]) -> Any:
        """What the worker's side must load and store in a step of these requests."""

    def request_finished(self, serial: int, block_ids: tuple[list[int], ...]) -> bool:
        """Whether the blocks of a request that has ended are still being sent, and must be kept until `kv_done`."""
