"""Configuration: every knob of the engine, checked once at the door, frozen afterwards.

`EngineConfig` is what a user may choose; `ModelFacts` and `KVCacheConfig` are what the worker finds out when it has
loaded the model and profiled the memory. All three stand in the header of a trace, so that a replay starts from
exactly the numbers the recording ran with.
"""

from __future__ import annotations

import bisect
import typing
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engine.errors import ConfigError

Policy = Literal["fcfs", "priority"]
HashAlgo = Literal["sha256", "builtin"]
TraceLevel = Literal["off", "control", "forward", "full"]
Dtype = Literal["auto", "float32", "float16", "bfloat16"]
AttentionBackendName = Literal["auto", "torch", "triton", "cpu", "flash_attn", "flashinfer"]


#: A day, in seconds.
_LONGEST_TIMEOUT = 86_400.0


def _at_least(name: str, value: int, low: int) -> None:
    if value < low:
        raise ConfigError(f"{name} must be an integer >= {low}, got {value!r}.")


def _at_most(name: str, value: int, high: int) -> None:
    if value > high:
        raise ConfigError(f"{name} must be an integer <= {high}, got {value!r}.")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}, got {value!r}.")


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which model, and in which arithmetic."""

    model: Annotated[str, Meta(description="`orrery-tiny`, `smollm2-135m`, a hub name or a folder")]
    dtype: Annotated[Dtype, Meta(description="dtype of weights and KV cache; auto: what suits the device")] = "auto"
    device: Annotated[Literal["auto", "cpu", "cuda"], Meta(description="auto: cuda if there is one, else cpu")] = "auto"
    quantization: Annotated[
        Literal["int8", "int4"] | None,
        Meta(description="int8 or int4: keep so many bits of each weight, on a CPU; by default all of them"),
    ] = None
    load_format: Annotated[
        Literal["auto", "dummy"], Meta(description="auto: the checkpoint; dummy: random weights, to measure speed with")
    ] = "auto"
    max_model_len: Annotated[int | None, Meta(description="longest prompt + output; None: the model's own limit")] = (
        None
    )
    seed: Annotated[int, Meta(description="seed from which the seeds of unseeded requests are drawn")] = 0
    max_logprobs: Annotated[
        int, Meta(description="most likely tokens that a request may ask to be told of; -1: the whole vocabulary")
    ] = 20

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("model must be a model name or a folder, got an empty string.")
        if self.max_model_len is not None:
            _at_least("max_model_len", self.max_model_len, 2)
        _at_least("max_logprobs", self.max_logprobs, -1)


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The paged KV cache."""

    block_size: Annotated[int, Meta(description="tokens per KV cache block")] = 16
    num_gpu_blocks_override: Annotated[
        int | None, Meta(description="blocks in the pool, null block included; None: profile")
    ] = None
    gpu_memory_utilization: Annotated[float, Meta(description="share of the device's memory the engine may use")] = 0.9
    kv_cache_memory_bytes: Annotated[
        int | None, Meta(description="bytes for the KV cache; None: from gpu_memory_utilization (CPU: 1 GiB at most)")
    ] = None
    enable_prefix_caching: Annotated[bool, Meta(description="reuse the KV of prompts that begin alike")] = True
    prefix_caching_hash_algo: Annotated[
        HashAlgo, Meta(description="sha256 over canonical CBOR, or Python's hash of integers")
    ] = "sha256"

    def __post_init__(self) -> None:
        _at_least("block_size", self.block_size, 1)
        if self.num_gpu_blocks_override is not None:
            _at_least("num_gpu_blocks_override", self.num_gpu_blocks_override, 2)
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ConfigError(f"gpu_memory_utilization must be in (0, 1], got {self.gpu_memory_utilization!r}.")
        if self.kv_cache_memory_bytes is not None:
            _at_least("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 1)


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine step may hold."""

    max_num_batched_tokens: Annotated[int, Meta(description="token budget of one step")] = 2048
    max_num_seqs: Annotated[int, Meta(description="most requests running at once")] = 128
    long_prefill_token_threshold: Annotated[
        int, Meta(description="most prompt tokens of one request in one step; 0: no limit")
    ] = 0
    policy: Annotated[Policy, Meta(description="fcfs, or priority (lower number first, then arrival)")] = "fcfs"
    async_scheduling: Annotated[bool, Meta(description="plan the next step while the last one runs")] = False

    def __post_init__(self) -> None:
        _at_least("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        _at_least("max_num_seqs", self.max_num_seqs, 1)
        _at_least("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        _one_of("policy", self.policy, ("fcfs", "priority"))


class ExecutionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a step is run on the device."""

    attention_backend: Annotated[
        AttentionBackendName, Meta(description="who attends over the KV cache; auto: the best there is for the device")
    ] = "auto"
    enforce_eager: Annotated[
        bool, Meta(description="capture no CUDA graphs: every step runs operation by operation")
    ] = False
    cudagraph_capture_sizes: Annotated[
        tuple[int, ...] | None,
        Meta(description="batch sizes of decodes to capture; None: 1, 2, 4, 8, 16, 24, … 512, as max_num_seqs needs"),
    ] = None
    compilation_level: Annotated[
        Literal[0, 3], Meta(description="0: layers run as they stand; 3: torch.compile generates code for them")
    ] = 0

    def __post_init__(self) -> None:
        for size in self.cudagraph_capture_sizes or ():
            _at_least("cudagraph_capture_sizes", size, 1)


#: Tokens of an n-gram, if nothing is said of it.
_LOOKUP = 5
_METHODS_OF_OPTION = {
    "prompt_lookup_max": ("ngram",),
    "prompt_lookup_min": ("ngram",),
    "prompt_lookup_match": ("ngram",),
    "model": ("draft_model", "medusa", "eagle"),
    "draft_confidence_threshold": ("draft_model", "medusa", "eagle"),
    "num_draft_layers": ("draft_model",),
}


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speculative decoding: a cheap draft proposes tokens, the model verifies them in one forward pass."""

    method: Annotated[Literal["ngram", "draft_model", "medusa", "eagle"], Meta(description="who proposes")]
    num_speculative_tokens: Annotated[int, Meta(description="most draft tokens per request and step")]
    prompt_lookup_max: Annotated[
        int | None, Meta(description="ngram: longest n-gram looked for; null: prompt_lookup_min, or 5 without it")
    ] = None
    prompt_lookup_min: Annotated[
        int | None, Meta(description="ngram: shortest n-gram looked for; null: prompt_lookup_max, or 5 without it")
    ] = None
    prompt_lookup_match: Annotated[
        Literal["first", "last"], Meta(description="ngram: which earlier place wins, of those that match the longest")
    ] = "first"
    model: Annotated[
        str | None,
        Meta(
            description="draft_model: name or folder of the drafter; medusa, eagle: of the heads, null: those that go "
            "by the model's name, such as orrery-tiny-eagle"
        ),
    ] = None
    num_draft_layers: Annotated[
        int | None, Meta(description="draft_model: it runs its first layers only, so many; null: all of them")
    ] = None
    draft_confidence_threshold: Annotated[
        float,
        Meta(
            description="draft_model, medusa, eagle: nothing is drafted behind a draft to which the drafter gives a "
            "lower probability; 0: every request gets all its drafts"
        ),
    ] = 0.0
    disable_by_batch_size: Annotated[
        int | None,
        Meta(description="with more running requests than this, no drafts are asked for; null: whatever runs"),
    ] = 16

    def __post_init__(self) -> None:
        _at_least("num_speculative_tokens", self.num_speculative_tokens, 1)
        if not 0.0 <= self.draft_confidence_threshold <= 1.0:
            raise ConfigError(f"draft_confidence_threshold must be in [0, 1], got {self.draft_confidence_threshold!r}.")
        defaults = dict(zip(reversed(self.__struct_fields__), reversed(self.__struct_defaults__), strict=False))
        for name, methods in _METHODS_OF_OPTION.items():
            if getattr(self, name) != defaults[name] and self.method not in methods:
                raise ConfigError(f"{name} is an option of the method {' or '.join(methods)}, not of {self.method}.")
        shortest, longest = self.prompt_lookup
        _at_least("prompt_lookup_min", shortest, 1)
        if longest < shortest:
            raise ConfigError(f"prompt_lookup_max must be an integer >= prompt_lookup_min={shortest}, got {longest!r}.")
        if self.method == "draft_model" and not self.model:
            raise ConfigError("The method draft_model needs a model that drafts: name it as model.")
        if self.num_draft_layers is not None:
            _at_least("num_draft_layers", self.num_draft_layers, 1)
        if self.disable_by_batch_size is not None:
            _at_least("disable_by_batch_size", self.disable_by_batch_size, 1)

    @property
    def prompt_lookup(self) -> tuple[int, int]:
        """The shortest and the longest n-gram that are looked for, as vLLM completes what was not given."""
        shortest, longest = self.prompt_lookup_min, self.prompt_lookup_max
        given = _LOOKUP if shortest is None and longest is None else shortest if longest is None else longest
        assert given is not None
        return given if shortest is None else shortest, given if longest is None else longest

    @property
    def num_lookahead_tokens(self) -> int:
        """Slots a running request needs beyond its scheduled tokens: a drafter with KV of its own writes there."""
        return self.num_speculative_tokens if self.method in ("draft_model", "eagle") else 0

    @property
    def drops_last_hit_block(self) -> bool:
        """EAGLE's layers read the hidden state before each token: the last hit block is computed anew to get it."""
        return self.method == "eagle"


class GuidedDecodingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How grammars are compiled, and what that may cost."""

    guided_decoding_backend: Annotated[
        Literal["auto", "xgrammar"], Meta(description="who compiles grammars; auto: xgrammar")
    ] = "auto"
    guided_decoding_disable_any_whitespace: Annotated[
        bool, Meta(description="let all JSON be written in one line, whatever its request says of white space")
    ] = False
    max_grammar_bytes: Annotated[
        int, Meta(description="longest grammar: as the user wrote it, and as EBNF that was made of it")
    ] = 2**18
    grammar_compile_timeout: Annotated[
        float, Meta(description="seconds after which a request whose grammar is not compiled ends with an error")
    ] = 30.0
    max_compiling_grammars: Annotated[int, Meta(description="grammars compiled at once, each in a thread")] = 2
    grammar_cache_bytes: Annotated[
        int, Meta(description="bytes of compiled grammars to keep, and of the largest that is accepted")
    ] = 2**28
    max_automaton_states: Annotated[
        int, Meta(description="most states of a grammar that the trace draws; the rest is one state more")
    ] = 128

    def __post_init__(self) -> None:
        _one_of("guided_decoding_backend", self.guided_decoding_backend, ("auto", "xgrammar"))
        _at_least("max_grammar_bytes", self.max_grammar_bytes, 1)
        # Written so that NaN, for which every comparison is false, fails it.
        if not 0.0 < self.grammar_compile_timeout <= _LONGEST_TIMEOUT:
            raise ConfigError(
                f"grammar_compile_timeout must be in (0, {_LONGEST_TIMEOUT:g}] seconds, "
                f"got {self.grammar_compile_timeout!r}."
            )
        _at_least("max_compiling_grammars", self.max_compiling_grammars, 1)
        _at_least("grammar_cache_bytes", self.grammar_cache_bytes, 1)
        _at_least("max_automaton_states", self.max_automaton_states, 2)


class TraceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Whether and how finely a run is recorded."""

    level: Annotated[
        TraceLevel, Meta(description="off, control (decisions), forward (tensors' shapes and slots), full")
    ] = "off"

    def __post_init__(self) -> None:
        _one_of("trace_level", self.level, ("off", "control", "forward", "full"))


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All that a user may choose, in its parts."""

    model: Annotated[ModelConfig, Meta(description="which model")]
    cache: Annotated[CacheConfig, Meta(description="the KV cache")] = msgspec.field(default_factory=CacheConfig)
    scheduler: Annotated[SchedulerConfig, Meta(description="what a step may hold")] = msgspec.field(
        default_factory=SchedulerConfig
    )
    execution: Annotated[ExecutionConfig, Meta(description="how a step is run")] = msgspec.field(
        default_factory=ExecutionConfig
    )
    speculative: Annotated[SpeculativeConfig | None, Meta(description="speculative decoding; null: none")] = None
    guided_decoding: Annotated[GuidedDecodingConfig, Meta(description="how grammars are compiled")] = msgspec.field(
        default_factory=GuidedDecodingConfig
    )
    trace: Annotated[TraceConfig, Meta(description="what is recorded")] = msgspec.field(default_factory=TraceConfig)

    def __post_init__(self) -> None:
        if self.scheduler.async_scheduling and self.speculative is not None:
            raise ConfigError(
                "async_scheduling cannot be combined with speculative_config: "
                "the drafts of a step must be verified before the next one is planned."
            )

    @classmethod
    def from_args(cls, model: str, **engine_args: Any) -> EngineConfig:
        """Sort flat, vLLM-named arguments (`block_size=…, max_num_seqs=…, trace_level=…`) into their parts.

        Raises:
            ConfigError: an unknown argument (with the nearest known one), or a value of the wrong type or range.
        """
        parts: dict[str, dict[str, Any]] = {name: {} for name in _PARTS}
        speculative_config = engine_args.pop("speculative_config", None)
        _require_known_options(speculative_config)
        for name, value in {"model": model, **engine_args}.items():
            part = _PART_OF_ARGUMENT.get(name)
            if part is None:
                raise ConfigError(_unknown_argument(name))
            field = "level" if name == "trace_level" else name
            parts[part][field] = _allowed(name, value, _PARTS[part], field)
        try:
            converted: dict[str, Any] = {part: msgspec.convert(values, _PARTS[part]) for part, values in parts.items()}
            speculative = msgspec.convert(speculative_config, SpeculativeConfig | None)
            return cls(**converted, speculative=speculative)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{_sentence(str(error))}") from error


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the loaded model is."""

    name: Annotated[str, Meta(description="as it was asked for")]
    architecture: Annotated[str, Meta(description="class name in Hugging Face transformers")]
    num_layers: Annotated[int, Meta(description="decoder layers")]
    hidden_size: Annotated[int, Meta(description="elements of a hidden state")]
    num_attention_heads: Annotated[int, Meta(description="query heads")]
    num_kv_heads: Annotated[int, Meta(description="key and value heads; several query heads share one")]
    head_size: Annotated[int, Meta(description="elements of one head")]
    vocab_size: Annotated[int, Meta(description="tokens the model knows")]
    max_model_len: Annotated[int, Meta(description="longest prompt + output, resolved")]
    dtype: Annotated[str, Meta(description="dtype of weights and KV cache, resolved")]
    eos_token_ids: Annotated[tuple[int, ...], Meta(description="tokens that end a sequence")]
    num_parameters: Annotated[int, Meta(description="parameters of the model")] = 0
    intermediate_size: Annotated[
        int, Meta(description="elements between the matrices of the MLP; 0 in a trace that does not tell")
    ] = 0
    tie_word_embeddings: Annotated[bool, Meta(description="the output head is the input embedding")] = True

    def __post_init__(self) -> None:
        _at_least("max_model_len", self.max_model_len, 1)
        _at_least("vocab_size", self.vocab_size, 1)


class KVCacheGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers whose KV is kept by one rule and therefore shares one block table per request."""

    kind: Annotated[Literal["full_attention", "sliding_window"], Meta(description="what a query can see")] = (
        "full_attention"
    )
    num_layers: Annotated[int, Meta(description="layers in the group")]
    layers: Annotated[tuple[int, ...], Meta(description="which decoder layers, counted from 0")] = ()
    sliding_window: Annotated[int | None, Meta(description="tokens a query can look back, itself included")] = None
    block_bytes: Annotated[int, Meta(description="bytes of one block over all layers of the group; all groups' alike")]

    def __post_init__(self) -> None:
        if (self.sliding_window is not None) != (self.kind == "sliding_window"):
            raise ConfigError(f"A KV cache group of kind {self.kind} cannot have sliding_window={self.sliding_window}.")
        if self.sliding_window is not None:
            # A window of one token would look back at nothing: no KV cache is needed for that.
            _at_least("sliding_window", self.sliding_window, 2)

    def most_blocks(self, block_size: int, max_model_len: int, max_num_new_tokens: int) -> int:
        """Blocks that one request can hold at most in this group.

        Args:
            block_size: tokens per block.
            max_model_len: tokens of the longest request.
            max_num_new_tokens: most slots that a step asks for beyond the computed tokens.
        """
        whole = -(-max_model_len // block_size)
        if self.sliding_window is None:
            return whole
        # What the first new token sees, and the new ones; one block more, as the window may begin inside a block.
        return min(whole, -(-(self.sliding_window - 1 + max_num_new_tokens) // block_size) + 1)


class KVCacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The KV cache as it was built: what profiling and the hash seed resolved to."""

    num_gpu_blocks: Annotated[int, Meta(description="blocks in the pool, the null block 0 included")]
    block_size: Annotated[int, Meta(description="tokens per block")]
    groups: Annotated[tuple[KVCacheGroup, ...], Meta(description="KV cache groups; events name them by their index")]
    none_hash: Annotated[str, Meta(description="hex: parent hash of every first block")]

    def __post_init__(self) -> None:
        # Far beyond any device; a header that says more is damaged, and would be believed block by block.
        _at_least("num_gpu_blocks", self.num_gpu_blocks, 1)
        _at_most("num_gpu_blocks", self.num_gpu_blocks, 2**24)
        _at_least("block_size", self.block_size, 1)
        _at_most("block_size", self.block_size, 2**16)
        if not self.groups:
            raise ConfigError("groups must hold at least one KV cache group, got none.")
        try:
            bytes.fromhex(self.none_hash)
        except ValueError as error:
            raise ConfigError(f"none_hash must be hexadecimal digits, two per byte, got {self.none_hash!r}.") from error

    def most_blocks(self, max_model_len: int, config: EngineConfig) -> int:
        """Blocks that one request can hold at most, over all groups."""
        return most_blocks(self.groups, self.block_size, max_model_len, config)

    def require_room_for(self, max_model_len: int, config: EngineConfig) -> None:
        """Refuse a pool that cannot hold one request of full length: such a request could never finish.

        Raises:
            ConfigError: with the blocks needed and the blocks there.
        """
        needed, usable = self.most_blocks(max_model_len, config), self.num_gpu_blocks - 1
        if needed > usable:
            longest = longest_request(self.groups, self.block_size, usable, max_model_len, config)
            raise ConfigError(
                f"One request of max_model_len={max_model_len} tokens needs {needed} KV cache blocks of "
                f"{self.block_size}, but the pool has {usable} usable ones (one is the null block): raise the number "
                f"of blocks to {needed + 1} or lower max_model_len to {longest}."
            )


def most_blocks(groups: tuple[KVCacheGroup, ...], block_size: int, max_model_len: int, config: EngineConfig) -> int:
    """Blocks that one request of `max_model_len` tokens can hold at most, over all KV cache groups."""
    lookahead = config.speculative.num_lookahead_tokens if config.speculative else 0
    most_new = config.scheduler.max_num_batched_tokens + lookahead
    return sum(group.most_blocks(block_size, max_model_len, most_new) for group in groups)


def longest_request(
    groups: tuple[KVCacheGroup, ...], block_size: int, num_blocks: int, max_model_len: int, config: EngineConfig
) -> int:
    """Most tokens, at most `max_model_len`, of a request that needs no more than `num_blocks` blocks."""
    return bisect.bisect_right(
        range(1, max_model_len + 1), num_blocks, key=lambda length: most_blocks(groups, block_size, length, config)
    )


_PARTS: dict[str, type[msgspec.Struct]] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "execution": ExecutionConfig,
    "guided_decoding": GuidedDecodingConfig,
    "trace": TraceConfig,
}
_PART_OF_ARGUMENT = {
    ("trace_level" if name == "level" else name): part
    for part, struct in _PARTS.items()
    for name in struct.__struct_fields__
}


def _require_known_options(speculative_config: Any) -> None:
    known = SpeculativeConfig.__struct_fields__
    if speculative_config is None:
        return
    if not isinstance(speculative_config, dict):
        raise ConfigError(f"speculative_config must hold {', '.join(known)}, got {speculative_config!r}.")
    for name in speculative_config:
        if name not in known:
            raise ConfigError(f"{name} is not an option of speculative_config; known are {', '.join(known)}.")
    for name in ("method", "num_speculative_tokens"):
        if name not in speculative_config:
            raise ConfigError(f"speculative_config must say {name}, which has no default.")
    for name, value in speculative_config.items():
        _allowed(name, value, SpeculativeConfig, name)


def _unknown_argument(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, _PART_OF_ARGUMENT, n=1)
    hint = f", did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(_PART_OF_ARGUMENT))}."
    return f"{name} is not an engine argument{hint}"


#: Other names of the same dtypes, vLLM's and torch's own.
_SPELLINGS = {
    "half": "float16",
    "float": "float32",
    "torch.float16": "float16",
    "torch.bfloat16": "bfloat16",
    "torch.float32": "float32",
}


def _allowed(name: str, value: Any, part: type[msgspec.Struct], field: str) -> Any:
    """The value, if the field takes any or names it among a few."""
    if name == "dtype":
        value = _SPELLINGS.get(str(value), value)
    hint = typing.get_args(typing.get_type_hints(part, include_extras=True)[field])[0]
    choices = [each for each in (hint, *typing.get_args(hint)) if typing.get_origin(each) is Literal]
    values = [value for choice in choices for value in typing.get_args(choice)]
    if isinstance(value, str | int) and values and value not in values:
        raise ConfigError(f"{name} must be one of {', '.join(map(str, values))}, got {value!r}.")
    return value


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?")) else f"{text}."
