"""Request: what the core knows of one request while it lives."""

from __future__ import annotations

from engine.core.messages import EngineCoreRequest, RequestStatus


class Request:
    """One request and how far it has come.

    Prefill and decode are the same thing here: a request has `num_tokens` tokens, of which `num_computed_tokens`
    have their KV in the cache, and every step computes some of the rest. Chunked prefill, prefix hits and resuming
    after a preemption all fall out of that one difference.
    """

    __slots__ = (
        "cache_salt",
        "coasts",
        "drafts_from_step",
        "eos_token_ids",
        "grammar",
        "lora_request",
        "max_tokens",
        "mm_features",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_fruitless_verifications",
        "num_output_placeholders",
        "num_placed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_remote_tokens",
        "priority",
        "prompt_embeds",
        "reads_prefix_cache",
        "request_id",
        "sampling_params",
        "serial",
        "spec_token_ids",
        "status",
        "stop_reason",
        "token_ids",
        "writes_prefix_cache",
    )

    def __init__(self, serial: int, request: EngineCoreRequest, max_model_len: int) -> None:
        self.serial = serial
        self.request_id = request.request_id
        self.priority = request.priority
        self.cache_salt = request.cache_salt
        self.lora_request = request.lora_request
        self.mm_features = request.mm_features
        self.sampling_params = request.sampling_params
        self.grammar = request.grammar
        self.eos_token_ids = () if request.sampling_params.ignore_eos else request.eos_token_ids
        self.prompt_embeds = request.prompt_embeds
        has_token_ids = request.prompt_embeds is None
        self.writes_prefix_cache = has_token_ids
        """Whether its blocks can be named by their tokens: those of embeddings cannot."""
        self.reads_prefix_cache = has_token_ids and request.sampling_params.prompt_logprobs is None
        """Log probabilities of a prompt are known only to who computes all of it."""
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.token_ids = list(request.prompt_token_ids)
        self.max_tokens = request.sampling_params.max_tokens or max_model_len - self.num_prompt_tokens
        self.num_computed_tokens = 0
        self.num_output_placeholders = 0
        """Tokens that steps in flight will sample: their places are planned with, their ids are not known yet."""
        self.num_placed_tokens = 0
        """While fewer tokens than this are computed, it needs no further block, and fills none that would be cached."""
        self.num_cached_tokens: int | None = None
        """Tokens that the prefix cache and the KV connector spared at the first admission; None before it."""
        self.num_remote_tokens = 0
        """Of the computed tokens, those whose KV came through the connector."""
        self.num_preemptions = 0
        self.spec_token_ids: list[int] = []
        """Draft tokens proposed for the next step; they may be rejected, so they count as no tokens of the request."""
        self.num_fruitless_verifications = 0
        """In a row, up to the last: none of their drafts was accepted."""
        self.drafts_from_step = 0
        """The first step after which drafts are wanted again."""
        self.status = RequestStatus.WAITING
        self.stop_reason: int | str | None = None
        self.coasts = False
        """Whether the next step need not look at it: its counts and tokens are then those of an earlier step."""

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    def awaits_its_last_token(self, max_model_len: int) -> bool:
        """Whether a step in flight will sample the last token its length allows, so that nothing is left to plan."""
        placeholders = self.num_output_placeholders
        return placeholders > 0 and (
            self.num_output_tokens + placeholders >= self.max_tokens or self.num_tokens + placeholders >= max_model_len
        )

    def depart(self, num_computed_tokens: int) -> None:
        """A step with tokens of this request leaves for the executor: they count as computed from now on.

        Only a step that leaves none uncomputed samples a token: of a chunked prefill, the last.
        """
        self.num_computed_tokens = num_computed_tokens
        self.spec_token_ids = []
        if num_computed_tokens >= self.num_tokens + self.num_output_placeholders:
            self.num_output_placeholders += 1

    def __repr__(self) -> str:
        return (
            f"Request({self.serial}, {self.request_id!r}, {self.status.value}, "
            f"{self.num_computed_tokens}/{self.num_tokens} tokens computed)"
        )
