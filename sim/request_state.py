"""One request of a trace at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.automaton import Automaton
from engine.core.messages import RequestStatus
from engine.inputs import LoRARequest, MultiModalFeature
from engine.sampling_params import GrammarSpec, SamplingParams


@dataclass(slots=True)
class RequestState:
    """One request; its short name everywhere is `r` and its serial."""

    serial: int
    request_id: str
    status: RequestStatus
    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    eos_token_ids: tuple[int, ...]
    priority: int
    cache_salt: str | None
    lora_request: LoRARequest | None
    mm_features: tuple[MultiModalFeature, ...]
    grammar: GrammarSpec | None
    arrival_step: int
    block_ids: list[list[int]]
    """The block table, one per KV cache group; block 0 stands where a sliding window has moved on."""
    output_token_ids: list[int] = field(default_factory=list)
    block_hashes: list[str] = field(default_factory=list)
    """Hex hashes of the full blocks of its prompt, once its prefix has been looked up."""
    draft_token_ids: list[int] = field(default_factory=list)
    """Tokens proposed for its next step, which will verify them."""
    num_computed_tokens: int = 0
    """Tokens whose KV is in the cache, or is being written by a step in flight."""
    num_cached_tokens: int = 0
    """Tokens that the prefix cache and the KV connector spared at the first admission."""
    num_hit_tokens: int = 0
    """Tokens that the prefix cache had of it at the newest lookup."""
    num_remote_tokens: int = 0
    """Tokens behind them that the KV connector had at its newest answer, one token at least left to compute."""
    receiving: bool = False
    """The connector still writes into its blocks, in the background."""
    sending: bool = False
    """The connector still reads its blocks, although it has ended."""
    num_preemptions: int = 0
    text: str = ""
    stop_string: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    abort_cause: str | None = None
    automaton: Automaton | None = None
    """Its grammar, drawn; None if it is not guided, not ready yet, or cannot be drawn."""
    automaton_state: int | None = None
    """Where its output stands on it."""
    failure: str | None = None
    """Why its grammar could not be compiled, or why the forward pass that ended it failed."""
    first_scheduled_step: int | None = None
    first_token_step: int | None = None
    finish_step: int | None = None

    @property
    def name(self) -> str:
        """Its short name: `r0`, `r1`, … in order of arrival."""
        return f"r{self.serial}"

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.status.is_finished

    @property
    def holds_blocks(self) -> bool:
        """Whether any block is its own or shared with it; of one that has ended, those that a connector works on."""
        return any(self.block_ids)

    @property
    def ended(self) -> bool:
        """Whether its end has been told in full: nothing changes any more but the text that the frontend still adds,
        and blocks on which a connector still works."""
        return self.finish_step is not None

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and output together."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def token_ids(self) -> list[int]:
        """Prompt, then output."""
        return [*self.prompt_token_ids, *self.output_token_ids]

    def copy(self) -> RequestState:
        """A request of its own."""
        return RequestState(
            self.serial,
            self.request_id,
            self.status,
            self.prompt_token_ids,
            self.sampling_params,
            self.eos_token_ids,
            self.priority,
            self.cache_salt,
            self.lora_request,
            self.mm_features,
            self.grammar,
            self.arrival_step,
            [table.copy() for table in self.block_ids],
            self.output_token_ids.copy(),
            self.block_hashes,
            self.draft_token_ids,
            self.num_computed_tokens,
            self.num_cached_tokens,
            self.num_hit_tokens,
            self.num_remote_tokens,
            self.receiving,
            self.sending,
            self.num_preemptions,
            self.text,
            self.stop_string,
            self.finish_reason,
            self.stop_reason,
            self.abort_cause,
            self.automaton,
            self.automaton_state,
            self.failure,
            self.first_scheduled_step,
            self.first_token_step,
            self.finish_step,
        )
