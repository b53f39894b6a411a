"""Every event type of the trace, each field with its meaning and unit.

An event belongs to one *class*:

- **input**: a call into the core, or an answer a collaborator gave it. A replay feeds these back in.
- **decision**: something the core returned or changed. A replay regenerates these and compares every field.
- **derived**: a function of the inputs alone. A replay recomputes and compares it, if need be where a backend is at
  hand, and else trusts it.
- **observation**: text, timings, tensors. Shown, never compared.

and to a *level*, the lowest trace level at which it is written. One event stands for one step, or one request in one
step, with lists inside; no event grows with the number of waiting requests or with the vocabulary.

Requests are named by their *serial* (order of arrival); `request.added` gives a serial its request id.
Blocks are named by their number in the pool; block 0 is the null block.
"""

from __future__ import annotations

import enum
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from engine.automaton import Automaton
from engine.config import EngineConfig, KVCacheConfig, ModelFacts, SchedulerConfig, TraceLevel
from engine.inputs import LoRARequest, MultiModalFeature
from engine.logprobs import TopLogprobs
from engine.sampling_params import GrammarSpec, SamplingParams
from engine.speculation import LikelyTokens, NgramMatch

#: Version of this schema: raised when a reader of the old one would misunderstand the new one.
SCHEMA_VERSION = 1


class EventClass(enum.Enum):
    """What a replay does with an event; see the module's docstring."""

    INPUT = "input"
    DECISION = "decision"
    DERIVED = "derived"
    OBSERVATION = "observation"


INPUT, DECISION, DERIVED, OBSERVATION = EventClass

Serial = Annotated[int, Meta(description="serial of the request")]
Group = Annotated[int, Meta(description="KV cache group")]
BlockIds = Annotated[list[int], Meta(description="numbers of the blocks")]
Why = Annotated[str, Meta(description="the reason, in plain words")]


class Header(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="header"):
    """The first line of a trace: everything a replay needs before the first event."""

    schema_version: Annotated[int, Meta(description="version of the schema this file follows")]
    engine_version: Annotated[str, Meta(description="version of Orrery that wrote it")]
    level: Annotated[TraceLevel, Meta(description="events of this level and below are in the file")]
    config: Annotated[EngineConfig, Meta(description="what the user chose")]
    model: Annotated[ModelFacts, Meta(description="what the loaded model is")]
    kv_cache: Annotated[KVCacheConfig, Meta(description="the KV cache as it was built")]
    tokenizer: Annotated[str, Meta(description="name of the tokenizer, and a digest of its file")]
    device: Annotated[str, Meta(description="where the model ran, e.g. `cpu` or `cuda:0`")]
    environment: Annotated[dict[str, str], Meta(description="versions of Python, torch and their like")]
    engine: Annotated[int, Meta(description="data-parallel rank of this engine")] = 0
    rank: Annotated[int, Meta(description="rank of the process that wrote this file")] = 0


class Event(msgspec.Struct, kw_only=True, tag_field="type"):
    """What all events share. The recorder fills these in; a writer of events never does."""

    kind: ClassVar[EventClass]
    level: ClassVar[TraceLevel] = "control"
    is_answer: ClassVar[bool] = False
    """Of an input: the core asked for it in the middle of a call, or it came with a call, rather than being one."""
    needs_backend: ClassVar[bool] = True
    """Of a derived event: no replay can recompute it without a backend."""

    seq: Annotated[int, Meta(description="strictly increasing number of the event in its file")] = 0
    ts: Annotated[int, Meta(description="nanoseconds since the trace began")] = 0
    step: Annotated[int, Meta(description="engine step the event belongs to; 0 before the first")] = 0
    engine: Annotated[int, Meta(description="data-parallel rank of the engine")] = 0
    rank: Annotated[int, Meta(description="rank of the process that wrote it")] = 0


# --- request ----------------------------------------------------------------------------------------------------


class RequestAdded(Event, tag="request.added", kw_only=True):
    """A request entered the core: `EngineCore.add`."""

    kind = INPUT
    request: Annotated[int, Meta(description="serial given to the request")]
    request_id: Annotated[str, Meta(description="the client's name for it")]
    prompt_token_ids: Annotated[tuple[int, ...], Meta(description="token ids [num_prompt_tokens]")]
    sampling_params: Annotated[
        SamplingParams, Meta(description="how its tokens are chosen, and when it stops; the seed is always set")
    ]
    eos_token_ids: Annotated[tuple[int, ...], Meta(description="tokens that end the output unless ignore_eos")]
    priority: Annotated[int, Meta(description="lower is served first under the priority policy")]
    cache_salt: Annotated[str | None, Meta(description="only requests of the same salt share KV blocks")]
    lora_request: Annotated[
        LoRARequest | None, Meta(description="adapter under which it runs; only requests of the same one share blocks")
    ] = None
    mm_features: Annotated[
        tuple[MultiModalFeature, ...], Meta(description="what its placeholder tokens stand for, in order")
    ] = ()
    grammar: Annotated[GrammarSpec | None, Meta(description="what the output must match; null if anything")] = None
    parent_id: Annotated[
        str | None, Meta(description="of one of several completions of a prompt: the client's name for all of them")
    ] = None
    child_index: Annotated[int, Meta(description="which of them it is; 0 for the only one")] = 0
    has_prompt_embeds: Annotated[
        bool, Meta(description="the prompt came as embeddings, which are not recorded: its token ids only count them")
    ] = False


#: Cause of an abort that its client sees as a stop: the frontend found a stop string.
STOP_STRING = "stop string"


class RequestAborted(Event, tag="request.aborted", kw_only=True):
    """Requests were taken out before their end: `EngineCore.abort`."""

    kind = INPUT
    requests: Annotated[list[int], Meta(description="serials")]
    cause: Annotated[str, Meta(description="who wanted it: `client`, `stop string`, …")]


class RequestStatusChanged(Event, tag="request.status", kw_only=True):
    """A request went from one status to another."""

    kind = DECISION
    request: Serial
    old: Annotated[str | None, Meta(description="status before; null for a new request")]
    new: Annotated[str, Meta(description="status after")]
    why: Why


class RequestFinished(Event, tag="request.finished", kw_only=True):
    """A request ended; its blocks are free, or held for a connector."""

    kind = DECISION
    request: Serial
    status: Annotated[str, Meta(description="status it ended with")]
    finish_reason: Annotated[str, Meta(description="stop, length, abort or error")]
    stop_reason: Annotated[int | str | None, Meta(description="the stop token id that ended it, if one did")]
    num_prompt_tokens: Annotated[int, Meta(description="tokens of its prompt")]
    num_output_tokens: Annotated[int, Meta(description="tokens it put out")]
    num_cached_tokens: Annotated[
        int, Meta(description="tokens that the prefix cache and the KV connector spared at its first admission")
    ]
    num_preemptions: Annotated[int, Meta(description="times it lost its blocks")]


class TokenPieces(Event, tag="token.pieces", kw_only=True):
    """The bytes of token ids, each id once, at its first appearance."""

    kind = OBSERVATION
    token_ids: Annotated[list[int], Meta(description="token ids")]
    pieces: Annotated[list[bytes], Meta(description="bytes per token id, base64 in JSON")]


class OutputText(Event, tag="output.text", kw_only=True):
    """Text that the frontend made of a request's new tokens."""

    kind = OBSERVATION
    request: Serial
    delta: Annotated[str, Meta(description="text that became certain in this step")]
    stop: Annotated[str | None, Meta(description="the stop string found in this step")]
    finished: Annotated[bool, Meta(description="nothing more follows")]


# --- grammar -----------------------------------------------------------------------------------------------------


class GrammarRequested(Event, tag="grammar.requested", kw_only=True):
    """The grammar backend was asked to compile a request's grammar."""

    kind = DECISION
    request: Serial
    grammar_kind: Annotated[str, Meta(description="choice, regex, json, json_object, grammar or structural_tag")]
    text: Annotated[str, Meta(description="the pattern, schema or EBNF itself")]


class GrammarReady(Event, tag="grammar.ready", kw_only=True):
    """A grammar is compiled: `EngineCore.grammar_ready`."""

    kind = INPUT
    request: Serial
    automaton: Annotated[
        Automaton | None,
        Meta(description="the grammar, drawn; null if an earlier request has the same one, or it cannot be drawn"),
    ] = None


class GrammarFailed(Event, tag="grammar.failed", kw_only=True):
    """A grammar could not be compiled: `EngineCore.grammar_failed`."""

    kind = INPUT
    request: Serial
    why: Why


class GrammarBitmaskFilled(Event, tag="grammar.bitmask", kw_only=True):
    """The masks of a step: which tokens its guided rows may sample. A row has one mask before each of its drafts, and
    one behind the last."""

    kind = DERIVED
    requests: Annotated[list[int], Meta(description="serials of the guided rows that sample, in the order of the plan")]
    num_allowed: Annotated[list[list[int]], Meta(description="per row and mask, the tokens that it allows")]
    digests: Annotated[
        list[list[str]], Meta(description="per row and mask its name, hexadecimal; equal masks, equal names")
    ]
    words: Annotated[
        dict[str, bytes],
        Meta(
            description="by name, the masks that this trace has not shown before: int32 in little-endian order, bit i "
            "of word w for token 32 w + i, base64 in JSON"
        ),
    ]


class GrammarAdvanced(Event, tag="grammar.advanced", kw_only=True):
    """New tokens of a guided request were read by its automaton."""

    kind = DERIVED
    request: Serial
    before: Annotated[
        int | None, Meta(description="state of the drawn automaton before them; null where none is drawn")
    ]
    after: Annotated[list[int | None], Meta(description="state after each of them")]
    terminated: Annotated[bool, Meta(description="the last of them ended the output: nothing may follow")]


# --- step -------------------------------------------------------------------------------------------------------


class ScheduleCalled(Event, tag="schedule.called", kw_only=True):
    """The loop asked for the next step: `EngineCore.schedule`."""

    kind = INPUT


class StepStarted(Event, tag="step.started", kw_only=True):
    """The situation in which a step is planned."""

    kind = DECISION
    running: Annotated[list[int], Meta(description="serials of the running queue, in order")]
    waiting: Annotated[list[int], Meta(description="the first 16 serials of the waiting queue, in serving order")]
    num_waiting: Annotated[int, Meta(description="length of the waiting queue")]
    token_budget: Annotated[int, Meta(description="max_num_batched_tokens")]
    free_blocks: Annotated[int, Meta(description="blocks that can be handed out, cached ones included")]


class ScheduleRequest(Event, tag="schedule.request", kw_only=True):
    """A request got tokens in this step."""

    kind = DECISION
    request: Serial
    admission: Annotated[Literal["running", "new", "resumed"], Meta(description="which queue it came from, and why")]
    phase: Annotated[Literal["prefill", "decode"], Meta(description="prefill while more than its newest token is left")]
    num_wanted_tokens: Annotated[int, Meta(description="tokens not yet computed, before any limit")]
    num_scheduled_tokens: Annotated[int, Meta(description="tokens it got in this step")]
    num_computed_tokens: Annotated[int, Meta(description="tokens computed before this step, prefix hits included")]
    num_cached_tokens: Annotated[int, Meta(description="tokens taken from the prefix cache at this admission")]
    truncated_by: Annotated[
        Literal["token_budget", "long_prefill_token_threshold", "max_model_len"] | None,
        Meta(description="the limit that cut it below what it wanted"),
    ]
    budget_left: Annotated[int, Meta(description="tokens left in the step's budget after it")]
    num_remote_tokens: Annotated[int, Meta(description="tokens taken from a KV connector for this admission")] = 0
    num_awaited_tokens: Annotated[
        int, Meta(description="wanted tokens that steps in flight have yet to sample; 0 in a synchronous loop")
    ] = 0
    draft_token_ids: Annotated[
        tuple[int, ...], Meta(description="the last of the scheduled tokens: drafts to be verified")
    ] = ()


class ScheduleSkipped(Event, tag="schedule.skipped", kw_only=True):
    """The first request that a reason kept out of this step; those behind it are only counted."""

    kind = DECISION
    request: Serial
    reason: Annotated[
        Literal[
            "token_budget",
            "max_num_seqs",
            "no_free_blocks",
            "preemption",
            "waiting_for_grammar",
            "waiting_for_remote_kvs",
        ],
        Meta(description="preemption: nothing new is admitted in a step that preempted"),
    ]
    needed: Annotated[int, Meta(description="no_free_blocks: blocks it needs (revived cached ones included), else 0")]
    available: Annotated[int, Meta(description="no_free_blocks: blocks that are free, else 0")]
    behind: Annotated[
        int,
        Meta(description="requests behind it in its queue that were not looked at; waiting_for_…: others that wait so"),
    ]


class SchedulePreempted(Event, tag="schedule.preempted", kw_only=True):
    """A running request lost its blocks; it will be recomputed."""

    kind = DECISION
    victim: Annotated[int, Meta(description="serial of the request that lost its blocks")]
    for_request: Annotated[int, Meta(description="the request that needed blocks; the victim itself if none is left")]
    needed: Annotated[int, Meta(description="blocks that request needed")]
    available: Annotated[int, Meta(description="blocks that were free")]
    num_computed_tokens: Annotated[int, Meta(description="tokens of KV lost")]
    was_scheduled: Annotated[bool, Meta(description="it had already been given tokens in this very step")]


class StepScheduled(Event, tag="step.scheduled", kw_only=True):
    """The plan of the step is complete."""

    kind = DECISION
    requests: Annotated[list[int], Meta(description="serials in the order of the super-sequence")]
    num_scheduled_tokens: Annotated[list[int], Meta(description="tokens per request, same order")]
    total_num_scheduled_tokens: Annotated[int, Meta(description="length of the super-sequence, in tokens")]
    budget_left: Annotated[int, Meta(description="tokens of the budget that nobody got")]
    free_blocks: Annotated[int, Meta(description="blocks that can be handed out, cached ones included")]
    released: Annotated[list[int], Meta(description="serials that leave the worker's batch")]


class StepOutput(Event, tag="step.output", kw_only=True):
    """What the executor brought back for a step: `EngineCore.update`."""

    kind = INPUT
    requests: Annotated[list[int], Meta(description="serials, in the order of the plan")]
    sampled_token_ids: Annotated[list[list[int]], Meta(description="new tokens per request; empty in mid-prompt")]
    draft_token_ids: Annotated[
        list[list[int]] | None, Meta(description="tokens proposed for the next step, per request; null without drafts")
    ] = None
    logprobs: Annotated[
        list[list[TopLogprobs]] | None,
        Meta(description="log probabilities per request and new token, for those who asked; null if nobody did"),
    ] = None
    prompt_logprobs: Annotated[
        list[list[TopLogprobs] | None] | None,
        Meta(description="the same per prompt token from the second on, once a request's prompt is computed"),
    ] = None
    errors: Annotated[
        dict[int, str] | None,
        Meta(description="per request from whose logits no token could be sampled: why; null if there is none"),
    ] = None


class ExecutorFailed(Event, tag="executor.failed", kw_only=True):
    """The forward pass of a step raised: `EngineCore.update` with a failure."""

    kind = INPUT
    why: Why


class UpdateRequest(Event, tag="update.request", kw_only=True):
    """What the output of a step did to one request."""

    kind = DECISION
    request: Serial
    appended: Annotated[list[int], Meta(description="token ids added to its output")]
    num_cut: Annotated[int, Meta(description="returned tokens dropped because they lie behind a stop")]
    num_rejected: Annotated[int, Meta(description="draft tokens that the model did not accept")]
    num_computed_tokens: Annotated[int, Meta(description="tokens with KV in the cache now")]
    dropped: Annotated[
        Literal["finished", "resumed"] | None,
        Meta(description="why its output was ignored: it ended, or was preempted and resumed, in the meantime"),
    ]


class StepExecuted(Event, tag="step.executed", kw_only=True):
    """How the worker ran the step."""

    kind = OBSERVATION
    mode: Annotated[Literal["eager", "captured"], Meta(description="plain forward pass, or a replayed CUDA graph")]
    num_tokens: Annotated[int, Meta(description="tokens of the super-sequence")]
    num_padded_tokens: Annotated[int, Meta(description="tokens after padding to a captured size")]
    prepare_ns: Annotated[int, Meta(description="building inputs, nanoseconds")]
    forward_ns: Annotated[int, Meta(description="the model up to its logits, nanoseconds")]
    sample_ns: Annotated[int, Meta(description="sampling, nanoseconds")]


# --- speculative decoding ---------------------------------------------------------------------------------------


class SpecPaused(Event, tag="spec.paused", kw_only=True):
    """Requests of this step that are to bring no drafts along for the next, and why."""

    kind = DECISION
    reason: Annotated[
        Literal["batch_size", "rejected"],
        Meta(
            description="batch_size: more requests run than `disable_by_batch_size`; rejected: none of the request's "
            "last drafts was accepted"
        ),
    ]
    requests: Annotated[list[int], Meta(description="their serials")]
    num_running: Annotated[int, Meta(description="running requests")]
    until_steps: Annotated[
        list[int], Meta(description="rejected: per request, the step that asks for drafts again; else empty")
    ] = []


class SpecProposed(Event, tag="spec.proposed", kw_only=True):
    """Tokens proposed to follow those that a request got in this step; they came with `step.output`."""

    kind = INPUT
    is_answer = True
    request: Serial
    method: Annotated[str, Meta(description="who proposed them, as speculative_config names it")]
    draft_token_ids: Annotated[list[int], Meta(description="the drafts, at least one")]
    match: Annotated[NgramMatch | None, Meta(description="ngram: the place whose continuation they are, else null")]


class SpecProbs(Event, tag="spec.probs", kw_only=True):
    """How a request's drafts were verified, one entry per draft, also of those behind a rejection."""

    kind = INPUT
    is_answer = True
    request: Serial
    target_probs: Annotated[
        list[float],
        Meta(
            description="probability of the draft under the model as it is sampled from (greedy: 1 at the largest "
            "logit); float32, as are the next two"
        ),
    ]
    draft_probs: Annotated[
        list[float], Meta(description="its probability under the drafter; 1 for one that tells none")
    ]
    uniforms: Annotated[
        list[float],
        Meta(
            description="the random number: accepted if it × draft prob < target prob; 0 for a greedy request, which "
            "draws none"
        ),
    ]
    likely: Annotated[
        list[LikelyTokens], Meta(description="level full: the most likely tokens at each draft's place")
    ] = []


class SpecVerdict(Event, tag="spec.verdict", kw_only=True):
    """What became of a request's drafts: follows from `spec.probs`."""

    kind = DERIVED
    needs_backend = False
    request: Serial
    draft_token_ids: Annotated[list[int], Meta(description="the drafts of this step")]
    num_accepted: Annotated[int, Meta(description="drafts accepted, from left to right up to the first rejection")]
    token_id: Annotated[
        int | None, Meta(description="the token behind them; null if the logits there could not be sampled from")
    ]
    token_kind: Annotated[
        Literal["recovered", "bonus"],
        Meta(description="recovered: in place of a rejected draft; bonus: behind the last, all being accepted"),
    ]


# --- KV cache ---------------------------------------------------------------------------------------------------


class KVLookup(Event, tag="kv.lookup", kw_only=True):
    """The prefix cache was asked for a request's longest cached prefix."""

    kind = DECISION
    request: Serial
    hashes: Annotated[list[str] | None, Meta(description="hex hashes of its full blocks, the first time; then null")]
    num_queried_tokens: Annotated[int, Meta(description="tokens of the request, prompt and output")]
    num_hit_tokens: Annotated[int, Meta(description="tokens found; never the whole prompt")]
    block_ids: Annotated[list[list[int]], Meta(description="blocks that hold them, per KV cache group")]


class KVAllocated(Event, tag="kv.allocated", kw_only=True):
    """Blocks left the head of `free_block_queue` for a request."""

    kind = DECISION
    request: Serial
    group: Group
    block_ids: BlockIds
    evicted_block_ids: Annotated[list[int], Meta(description="those that still held a cached prefix, now lost")]
    evicted_hashes: Annotated[list[str], Meta(description="the hashes they lost")]


class KVTouched(Event, tag="kv.touched", kw_only=True):
    """A request shares blocks found in the prefix cache."""

    kind = DECISION
    request: Serial
    group: Group
    block_ids: BlockIds
    ref_counts: Annotated[list[int], Meta(description="after; 1 means the block was revived from free_block_queue")]


class KVCached(Event, tag="kv.cached", kw_only=True):
    """Full blocks got their hash and can be found by later requests."""

    kind = DECISION
    request: Serial
    group: Group
    first_block: Annotated[int, Meta(description="index of the first of them in the request's block table")]
    block_ids: BlockIds
    hashes: Annotated[list[str], Meta(description="hex")]
    parent: Annotated[str, Meta(description="hash before the first of them; each next one's parent is the one before")]


class KVUncached(Event, tag="kv.uncached", kw_only=True):
    """Blocks lost their hash because their KV was never written, or because the cache was reset."""

    kind = DECISION
    block_ids: BlockIds
    hashes: Annotated[list[str], Meta(description="hex, the hashes they lost")]
    why: Why


class KVFreed(Event, tag="kv.freed", kw_only=True):
    """A request gave up blocks: all it has of a group, or those that a sliding window has passed. Blocks that no one
    else uses join the tail of `free_block_queue` in this order."""

    kind = DECISION
    request: Serial
    group: Group
    block_ids: Annotated[list[int], Meta(description="in the order given up: the tail of the request first")]
    ref_counts: Annotated[list[int], Meta(description="after; 0 means free, and still cached if it has a hash")]
    why: Why
    by_window: Annotated[
        bool, Meta(description="the request goes on: its block table holds the null block in their place")
    ] = False


class CacheResetAsked(Event, tag="cache.reset", kw_only=True):
    """Someone asked to forget every cached prefix: `EngineCore.reset_prefix_cache`."""

    kind = INPUT


class ConfigChanged(Event, tag="config.changed", kw_only=True):
    """The limits of a step were changed while the core ran: `EngineCore.reconfigure`. They hold from the next step on,
    in place of those that the header names."""

    kind = INPUT
    scheduler: Annotated[SchedulerConfig, Meta(description="what a step may hold from now on")]


class CacheReset(Event, tag="cache.reset_done", kw_only=True):
    """The answer: done only when no block is in use."""

    kind = DECISION
    done: Annotated[bool, Meta(description="whether every cached prefix is forgotten")]
    blocks_in_use: Annotated[int, Meta(description="blocks that some request holds")]


# --- KV transfer ------------------------------------------------------------------------------------------------


class KVTransferMatched(Event, tag="kv_transfer.matched", kw_only=True):
    """What the KV connector has of a request beyond its local prefix."""

    kind = INPUT
    is_answer = True
    request: Serial
    num_tokens: Annotated[int, Meta(description="tokens whose KV lies elsewhere")]
    load_async: Annotated[bool, Meta(description="loaded in the background: the request waits for it")]


class KVTransferFinished(Event, tag="kv_transfer.finished", kw_only=True):
    """What the KV connector says when a request has ended."""

    kind = INPUT
    is_answer = True
    request: Serial
    sending: Annotated[bool, Meta(description="its blocks are still being sent")]


class KVTransferDone(Event, tag="kv_transfer.done", kw_only=True):
    """Transfers have come to their end: `EngineCore.kv_done`."""

    kind = INPUT
    finished_receiving: Annotated[list[int], Meta(description="serials whose KV is here")]
    finished_sending: Annotated[list[int], Meta(description="serials whose KV has been sent")]


class KVHeld(Event, tag="kv.held", kw_only=True):
    """A request has ended, but its blocks stay out of the pool: a connector still works on them."""

    kind = DECISION
    request: Serial
    sending: Annotated[bool, Meta(description="they are read")]
    receiving: Annotated[bool, Meta(description="they are written")]


# --- worker -----------------------------------------------------------------------------------------------------


class DeviceInitialized(Event, tag="worker.device_initialized", kw_only=True):
    """The worker chose its device: the first of what happens before step 1."""

    kind = OBSERVATION
    device: Annotated[str, Meta(description="`cpu`, or `cuda:0`")]
    device_name: Annotated[str, Meta(description="what the maker calls it")]
    total_bytes: Annotated[int, Meta(description="memory it has")]
    available_bytes: Annotated[int, Meta(description="memory that can still be taken")]
    duration_ns: Annotated[int, Meta(description="nanoseconds it took")]


class ModelLoaded(Event, tag="worker.model_loaded", kw_only=True):
    """The weights are on the device."""

    kind = OBSERVATION
    num_parameters: Annotated[int, Meta(description="parameters of the model")]
    weight_bytes: Annotated[int, Meta(description="memory that they take")]
    attention_backend: Annotated[str, Meta(description="who attends over the KV cache")]
    duration_ns: Annotated[int, Meta(description="nanoseconds it took")]


class MemoryProfiled(Event, tag="worker.profiled", kw_only=True):
    """A made-up step showed how much memory a step takes beside the weights."""

    kind = OBSERVATION
    num_tokens: Annotated[int, Meta(description="tokens of the largest step that there can be")]
    activation_bytes: Annotated[int, Meta(description="memory that such a step takes at its peak")]
    graph_bytes: Annotated[int, Meta(description="memory set aside for CUDA graphs; 0 if none are captured")]
    duration_ns: Annotated[int, Meta(description="nanoseconds it took")]


class KVCacheAllocated(Event, tag="worker.kv_cache_allocated", kw_only=True):
    """The KV cache exists."""

    kind = OBSERVATION
    num_gpu_blocks: Annotated[int, Meta(description="blocks in the pool, the null block 0 included")]
    num_bytes: Annotated[int, Meta(description="memory that they take")]
    budget_bytes: Annotated[int, Meta(description="memory that they were allowed")]
    duration_ns: Annotated[int, Meta(description="nanoseconds it took")]


class GraphCaptured(Event, tag="worker.graph_captured", kw_only=True):
    """The forward passes of decodes were recorded as CUDA graphs."""

    kind = OBSERVATION
    sizes: Annotated[list[int], Meta(description="batch sizes, one graph each, ascending")]
    num_bytes: Annotated[int, Meta(description="memory that all of them take")]
    duration_ns: Annotated[int, Meta(description="nanoseconds it took")]


# --- forward pass and sampling ----------------------------------------------------------------------------------


class ForwardInputs(Event, tag="forward.inputs", kw_only=True):
    """The tensors of a step's super-sequence: all scheduled tokens of all requests, one after another."""

    kind = OBSERVATION
    level = "forward"
    requests: Annotated[list[int], Meta(description="serials, in the order of the batch")]
    input_ids: Annotated[list[int], Meta(description="token ids [num_tokens]")]
    positions: Annotated[list[int], Meta(description="position of each token in its request [num_tokens]")]
    slot_mapping: Annotated[
        list[int], Meta(description="block id × block_size + offset: where each token's K and V go [num_tokens]")
    ]
    query_start_loc: Annotated[list[int], Meta(description="where each request begins [num_requests + 1]")]
    seq_lens: Annotated[list[int], Meta(description="tokens each request attends to [num_requests]")]
    block_tables: Annotated[
        list[list[int]], Meta(description="block ids per request; those that a window has passed are read no more")
    ]
    logits_indices: Annotated[list[int], Meta(description="rows of the hidden states that become logits")]
    more_slot_mappings: Annotated[
        list[list[int]], Meta(description="slot_mapping of every KV cache group after the first")
    ] = []
    more_block_tables: Annotated[
        list[list[list[int]]], Meta(description="block_tables of every KV cache group after the first")
    ] = []


class ForwardLogits(Event, tag="forward.logits", kw_only=True):
    """The most likely tokens of each sampled row, and the one that was taken."""

    kind = OBSERVATION
    level = "forward"
    requests: Annotated[list[int], Meta(description="serials of the rows that were sampled")]
    top_token_ids: Annotated[list[list[int]], Meta(description="per row, most likely first")]
    top_logits: Annotated[list[list[float]], Meta(description="raw logits of those tokens")]
    top_probs: Annotated[
        list[list[float]],
        Meta(
            description="their probabilities as sampled from (after penalties, temperature, top-k, …; greedy: after "
            "penalties)"
        ),
    ]
    sampled_token_ids: Annotated[list[int], Meta(description="the token taken per row")]


AnyEvent = (
    RequestAdded
    | RequestAborted
    | RequestStatusChanged
    | RequestFinished
    | TokenPieces
    | OutputText
    | GrammarRequested
    | GrammarReady
    | GrammarFailed
    | GrammarBitmaskFilled
    | GrammarAdvanced
    | ScheduleCalled
    | StepStarted
    | ScheduleRequest
    | ScheduleSkipped
    | SchedulePreempted
    | StepScheduled
    | StepOutput
    | ExecutorFailed
    | UpdateRequest
    | StepExecuted
    | SpecPaused
    | SpecProposed
    | SpecProbs
    | SpecVerdict
    | KVLookup
    | KVAllocated
    | KVTouched
    | KVCached
    | KVUncached
    | KVFreed
    | CacheResetAsked
    | ConfigChanged
    | CacheReset
    | KVTransferMatched
    | KVTransferFinished
    | KVTransferDone
    | KVHeld
    | DeviceInitialized
    | ModelLoaded
    | MemoryProfiled
    | KVCacheAllocated
    | GraphCaptured
    | ForwardInputs
    | ForwardLogits
)


def tag_of(event: Event | type[Event]) -> str:
    """The name of a type of event, as a line of the file has it: `kv.allocated`."""
    return str(event.__struct_config__.tag)


EVENT_TYPES: dict[str, type[Event]] = {tag_of(struct): struct for struct in AnyEvent.__args__}
