"""What crosses the boundary of the engine core: plain typed data, named after what it is.

::

    EngineCoreRequest ──► add │            │ schedule ──► SchedulerOutput   ──► executor
                              │ EngineCore │
    EngineCoreOutputs ◄───────│            │ update   ◄── ModelRunnerOutput ◄── executor

A *serial* is the engine's own number for a request, its place in the order of arrival. A client may use a request id
again once the first request of that name has finished; a serial never comes back, so nothing late can reach the
wrong request.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from engine.inputs import LoRARequest, MultiModalFeature
from engine.logprobs import TopLogprobs
from engine.sampling_params import GrammarSpec, SamplingParams
from engine.speculation import Speculation


class RequestStatus(enum.Enum):
    """The life of a request; everything from FINISHED_STOPPED on is an end."""

    WAITING = "waiting"
    WAITING_FOR_FSM = "waiting_for_fsm"
    WAITING_FOR_REMOTE_KVS = "waiting_for_remote_kvs"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED_STOPPED = "finished_stopped"
    FINISHED_LENGTH_CAPPED = "finished_length_capped"
    FINISHED_ABORTED = "finished_aborted"
    FINISHED_IGNORED = "finished_ignored"
    FINISHED_ERROR = "finished_error"

    finish_reason: str | None
    """vLLM's word for the end: stop, length, abort or error; None while alive."""
    is_finished: bool
    """Whether this is an end: the request holds no block and is scheduled no more."""


_FINISH_REASONS = {
    RequestStatus.FINISHED_STOPPED: "stop",
    RequestStatus.FINISHED_LENGTH_CAPPED: "length",
    RequestStatus.FINISHED_ABORTED: "abort",
    RequestStatus.FINISHED_IGNORED: "length",
    RequestStatus.FINISHED_ERROR: "error",
}
# Plain attributes, set once: every row of every step is asked, and hashing an enum member is slow.
for _status in RequestStatus:
    _status.finish_reason = _FINISH_REASONS.get(_status)
    _status.is_finished = _status in _FINISH_REASONS


class EngineCoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the frontend hands it to the core: token ids, no text."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0
    cache_salt: str | None = None
    lora_request: LoRARequest | None = None
    """The adapter under which it runs: part of what names its KV blocks. The core knows no more of it."""
    mm_features: tuple[MultiModalFeature, ...] = ()
    """What its placeholder tokens stand for, in the order of their offsets: likewise."""
    grammar: GrammarSpec | None = None
    parent_id: str | None = None
    """Of one of several completions of a prompt: the client's name for all of them together."""
    child_index: int = 0
    """Which of them it is."""
    prompt_embeds: Any = None
    """A prompt given as embeddings, in whatever form the worker takes them; its token ids are then only a count."""


class NewRequestData(msgspec.Struct, frozen=True, kw_only=True):
    """What the model runner must know of a request it meets for the first time, or again after a preemption."""

    token_ids: list[int]
    """Prompt and, after a preemption, the output so far."""
    num_prompt_tokens: int
    sampling_params: SamplingParams
    prompt_embeds: Any = None
    """float tensor [num_prompt_tokens, hidden_size] in place of the prompt's token ids; None if it has these."""


class ScheduledRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request's share of a step: which of its tokens run, and where their KV goes."""

    serial: int
    request_id: str
    num_scheduled_tokens: int
    num_computed_tokens: int
    """Tokens whose KV was in the cache before this step; the scheduled ones are the next after them."""
    block_ids: tuple[list[int], ...]
    """Per KV cache group: the whole block table if `new` is set, else only the blocks added in this step."""
    new: NewRequestData | None = None
    draft_token_ids: tuple[int, ...] = ()
    """The last of the scheduled tokens, which this step verifies."""

    @property
    def num_tokens_after(self) -> int:
        """Tokens whose KV is in the cache after this step."""
        return self.num_computed_tokens + self.num_scheduled_tokens


class CoastingRows(msgspec.Struct, frozen=True, kw_only=True):
    """Decodes that a step counts and does not name: see `engine/core/scheduler/coasting.py`."""

    num_rows: int
    """Each of them gets one token."""
    num_kv_tokens: int
    """The contexts that they read, this step's tokens included."""
    woken: dict[int, int]
    """By serial, requests that had coasted up to this step: through how many steps."""


class SchedulerOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of one step, in the order in which its rows were scheduled."""

    step: int
    rows: list[ScheduledRow]
    released: list[int]
    """Serials that left the batch since the last executed step: finished, aborted or preempted."""
    kv_connector_metadata: Any = None
    """What the worker's side of the KV connector must load and store in this step; None without a connector."""
    num_drafts_wanted: list[int] | None = None
    """Per row, the most drafts that it may bring along for the next step; None without speculation."""
    coasting: CoastingRows | None = None
    """What else runs in this step; None where every row is named."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing runs: the plan needs no forward pass and gets no `update`."""
        return not self.rows and (self.coasting is None or not self.coasting.num_rows)

    @property
    def total_num_scheduled_tokens(self) -> int:
        """Length of the step's super-sequence, in tokens."""
        return sum(row.num_scheduled_tokens for row in self.rows)


class GrammarBitmask(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens that the guided rows of a step may sample."""

    serials: list[int]
    """The guided rows, in the order of the plan."""
    words: Any
    """As the grammar backend makes it and the sampler takes it: int32 [masks, ceil(vocab / 32)], bit 1 = allowed."""


class ModelRunnerOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What the forward pass and the sampler brought back for one step, row by row as scheduled."""

    step: int
    serials: list[int]
    sampled_token_ids: list[list[int]]
    """Per row the new tokens; empty while the row's prompt is not fully computed. With drafts: those accepted, and one
    more."""
    draft_token_ids: list[list[int]] | None = None
    """Per row the tokens proposed for the next step; they replace what was proposed before."""
    logprobs: list[list[TopLogprobs]] | None = None
    """Per row one entry per new token, none where the request did not ask; None if no row did."""
    prompt_logprobs: list[list[TopLogprobs] | None] | None = None
    """Per row, if it asked and this step completed its prompt, one entry per prompt token from the second on; None if
    there is no such row."""
    speculation: Speculation | None = None
    """What the trace is told of drafts verified and proposed; None without drafts, or if nothing is recorded."""
    errors: dict[int, str] | None = None
    """By serial, why a row that was to be sampled could not be; it has no token, and its request ends with an error."""


class ForwardFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The forward pass of a step raised: no KV of the step was written, its requests end with an error."""

    step: int
    why: str


class EngineCoreOutput(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """News of one request after one step."""

    serial: int
    request_id: str
    new_token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0
    """Prompt tokens that the prefix cache spared at the request's first admission."""
    error: str | None = None
    new_logprobs: list[TopLogprobs] | None = None
    """Per new token; None unless asked for."""
    prompt_logprobs: list[TopLogprobs] | None = None
    """From the prompt's second token on; once, with the first output token, if asked for."""


class EngineCoreOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """News of all requests that a step moved."""

    step: int
    outputs: list[EngineCoreOutput]
