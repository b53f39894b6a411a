"""An episode: a configuration, and everything that will befall the core, as plain data.

Nothing in it depends on what the core does. A request carries its whole life with it (when it comes, how long its
answers take, when its client gives up), so that leaving one out of an episode changes nothing about the others.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.config import EngineConfig, HashAlgo, KVCacheConfig, KVCacheGroup, ModelFacts, Policy, most_blocks
from engine.core.kv_cache.block_hash import none_hash_for
from engine.core.messages import EngineCoreRequest
from engine.sampling_params import GrammarSpec, SamplingParams
from engine.trace.events import SCHEMA_VERSION, Header

#: The toy model's end-of-sequence token.
EOS = 2

#: Within a tick: before the step is planned, or between the plan and the next output, while steps are in flight.
Moment = Literal["before", "in flight"]


class Setting(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """The configuration of an episode. The defaults are the simplest one; a shrunk episode tends towards them."""

    policy: Policy = "fcfs"
    block_size: int = 4
    max_model_len: int = 32
    num_spare_blocks: int = 0
    """Blocks of the pool beyond those of one request of full length."""
    max_num_batched_tokens: int = 64
    max_num_seqs: int = 8
    long_prefill_token_threshold: int = 0
    enable_prefix_caching: bool = True
    hash_algo: HashAlgo = "builtin"
    drafter: Literal["ngram", "eagle"] | None = None
    num_speculative_tokens: int = 1
    draft_luck: int = 50
    """Of a hundred drafts, how many are what the model would say."""
    steps_in_flight: int = 1
    windows: tuple[int | None, ...] = (None,)
    """Per KV cache group, the tokens that its layers look back; None: all of them."""
    kv_connector: bool = False

    def header(self) -> Header:
        """The header that a recording of this episode would have."""
        speculative = {"method": self.drafter, "num_speculative_tokens": self.num_speculative_tokens}
        config = EngineConfig.from_args(
            "toy",
            block_size=self.block_size,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            policy=self.policy,
            enable_prefix_caching=self.enable_prefix_caching,
            prefix_caching_hash_algo=self.hash_algo,
            speculative_config=speculative if self.drafter else None,
            trace_level="control",
        )
        groups = tuple(_group(window, self.block_size) for window in self.windows)
        room = most_blocks(groups, self.block_size, self.max_model_len, config)
        return Header(
            schema_version=SCHEMA_VERSION,
            engine_version="fuzz",
            level="control",
            config=config,
            model=ModelFacts(
                name="toy",
                architecture="none",
                num_layers=1,
                hidden_size=1,
                num_attention_heads=1,
                num_kv_heads=1,
                head_size=1,
                vocab_size=100,
                max_model_len=self.max_model_len,
                dtype="float32",
                eos_token_ids=(EOS,),
            ),
            kv_cache=KVCacheConfig(
                num_gpu_blocks=1 + room + self.num_spare_blocks,
                block_size=self.block_size,
                groups=groups,
                none_hash=none_hash_for(self.hash_algo),
            ),
            tokenizer="none",
            device="none",
            environment={},
        )


def _group(window: int | None, block_size: int) -> KVCacheGroup:
    kind: Literal["full_attention", "sliding_window"] = "full_attention" if window is None else "sliding_window"
    return KVCacheGroup(kind=kind, num_layers=1, sliding_window=window, block_bytes=8 * block_size)


class Arrival(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """A request, and its client's and collaborators' part in its life. Times are in ticks."""

    tick: int
    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int = 4
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    priority: int = 0
    cache_salt: str | None = None
    asks_prompt_logprobs: bool = False
    """It computes all of its prompt, whatever the cache holds."""
    has_prompt_embeds: bool = False
    """Its blocks cannot be known by their tokens."""
    moment: Moment = "before"
    takes_over: bool = False
    """Its client aborts whoever bears this id, and uses the id again at once."""
    grammar_after: int | None = None
    """Ticks until its grammar is compiled; None: it is not guided."""
    grammar_fails: bool = False
    num_remote_tokens: int = 0
    """Tokens of its prompt whose KV another engine has."""
    remote_after: int | None = None
    """Ticks until that KV is here; None: it is loaded within the step."""
    sent_after: int | None = None
    """Ticks for which another engine still reads its blocks when it has ended."""
    aborted_after: int | None = None
    """Ticks until its client gives up."""
    aborted_at: Moment = "before"

    def request(self) -> EngineCoreRequest:
        """The request as the frontend would hand it over."""
        return EngineCoreRequest(
            request_id=self.request_id,
            prompt_token_ids=self.prompt,
            sampling_params=SamplingParams(
                max_tokens=self.max_tokens,
                min_tokens=self.min_tokens,
                stop_token_ids=self.stop_token_ids,
                ignore_eos=self.ignore_eos,
                prompt_logprobs=0 if self.asks_prompt_logprobs else None,
                seed=0,
            ),
            eos_token_ids=(EOS,),
            priority=self.priority,
            cache_salt=self.cache_salt,
            prompt_embeds=self.has_prompt_embeds or None,
            grammar=None if self.grammar_after is None else GrammarSpec(kind="regex", text=".*"),
        )


class Episode(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """What happens, from the first tick until nothing is left to do."""

    seed: int
    setting: Setting
    arrivals: tuple[Arrival, ...]
    """In the order of their ticks."""
    resets: tuple[tuple[int, Moment], ...] = ()
    """When someone asks to forget every cached prefix."""
    failures: tuple[int, ...] = ()
    """Steps whose forward pass raises."""
