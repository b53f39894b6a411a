"""Drives an `EngineCore` without a model: a seeded crowd of requests, and tokens out of a hat."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from engine.config import EngineConfig, KVCacheConfig, KVCacheGroup
from engine.core.engine_core import EngineCore
from engine.core.kv_cache.block_hash import none_hash_for
from engine.core.messages import EngineCoreRequest, ForwardFailure, ModelRunnerOutput, SchedulerOutput
from engine.core.seams import KVConnector
from engine.inputs import LoRARequest, MultiModalFeature
from engine.sampling_params import GrammarSpec, SamplingParams
from engine.speculation import DraftProbs, Speculation
from engine.trace.events import SCHEMA_VERSION, Header
from engine.trace.file import Trace, read_trace
from engine.trace.recorder import EventSink, Recorder
from sim.recorded import RecordedGrammarBackend
from tests.model_facts import model_facts

EOS = 2
MAX_MODEL_LEN = 64


#: Layers that see everything, as most models have them.
FULL = KVCacheGroup(num_layers=2, block_bytes=1024)


def window_of(tokens: int) -> KVCacheGroup:
    """Layers that see so many tokens, the newest included."""
    return KVCacheGroup(kind="sliding_window", num_layers=2, sliding_window=tokens, block_bytes=1024)


def header(
    num_blocks: int = 24, block_size: int = 4, groups: tuple[KVCacheGroup, ...] = (FULL,), **engine_args: Any
) -> Header:
    """The header of a run with no model behind it."""
    config = EngineConfig.from_args("no-model", block_size=block_size, trace_level="control", **engine_args)
    return Header(
        schema_version=SCHEMA_VERSION,
        engine_version="0",
        level="control",
        config=config,
        model=model_facts(
            name="no-model",
            num_layers=2,
            num_attention_heads=2,
            head_size=4,
            max_model_len=MAX_MODEL_LEN,
            eos_token_ids=(EOS,),
        ),
        kv_cache=KVCacheConfig(
            num_gpu_blocks=num_blocks,
            block_size=block_size,
            groups=groups,
            none_hash=none_hash_for(config.cache.prefix_caching_hash_algo),
        ),
        tokenizer="none",
        device="none",
        environment={},
    )


def make_core(
    trace: EventSink | None = None, num_blocks: int = 24, block_size: int = 4, **engine_args: Any
) -> EngineCore:
    """A core with a small pool."""
    return core_of(header(num_blocks, block_size, **engine_args), trace)


def core_of(head: Header, trace: EventSink | None = None, kv_connector: KVConnector | None = None) -> EngineCore:
    """A core as a header describes it; its grammars are ready when the test says so."""
    return EngineCore(head.config, head.kv_cache, MAX_MODEL_LEN, trace, RecordedGrammarBackend(), kv_connector)


def request(
    request_id: str,
    prompt: list[int],
    priority: int = 0,
    salt: str | None = None,
    grammar: GrammarSpec | None = None,
    lora: LoRARequest | None = None,
    mm_features: tuple[MultiModalFeature, ...] = (),
    **params: Any,
) -> EngineCoreRequest:
    """A request as the frontend would make it."""
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling_params=SamplingParams(**{"seed": 0, **params}),
        eos_token_ids=(EOS,),
        priority=priority,
        cache_salt=salt,
        lora_request=lora,
        mm_features=mm_features,
        grammar=grammar,
    )


def answer(core: EngineCore, plan: SchedulerOutput, tokens: list[int]) -> ModelRunnerOutput:
    """What a forward pass would return: one of `tokens` for every row whose prompt is complete, in order."""
    supply = iter(tokens)
    return ModelRunnerOutput(
        step=plan.step,
        serials=[row.serial for row in plan.rows],
        sampled_token_ids=[
            [next(supply)] if row.num_tokens_after >= core.requests[row.request_id].num_tokens else []
            for row in plan.rows
        ],
    )


def run_step(core: EngineCore, token: int = 9) -> SchedulerOutput:
    """One whole step in which every complete row samples `token`."""
    plan = core.schedule()
    if plan.rows:
        core.update(plan.step, answer(core, plan, [token] * len(plan.rows)))
    return plan


class DiceConnector:
    """A `KVConnector` that has some KV of some requests, and is done with its transfers when the dice say so."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._receiving: list[int] = []
        self._sending: list[int] = []

    def get_num_new_matched_tokens(
        self, serial: int, token_ids: list[int], num_computed_tokens: int
    ) -> tuple[int, bool]:
        """Half of the requests are known elsewhere."""
        if self._rng.random() < 0.5:
            return 0, False
        return self._rng.randrange(1, len(token_ids) + 1), self._rng.random() < 0.6

    def update_state_after_alloc(self, serial: int, block_ids: tuple[list[int], ...], num_tokens: int) -> None:
        """The transfer begins; loaded within the step, it is over before anyone asks."""
        self._receiving.append(serial)

    def build_connector_meta(self, serials: list[int]) -> None:
        """Nothing is moved here."""

    def request_finished(self, serial: int, block_ids: tuple[list[int], ...]) -> bool:
        """A third of the requests are sent on."""
        sending = bool(block_ids[0]) and self._rng.random() < 0.3
        if sending:
            self._sending.append(serial)
        return sending

    def report(self, core: EngineCore, *, everything: bool = False) -> None:
        """Tell the core what is done by now."""
        done = [
            [serial for serial in serials if everything or self._rng.random() < 0.3]
            for serials in (self._receiving, self._sending)
        ]
        self._receiving = [serial for serial in self._receiving if serial not in done[0]]
        self._sending = [serial for serial in self._sending if serial not in done[1]]
        if done[0] or done[1]:
            core.kv_done(*done)


@dataclass
class Crowd:
    """Random requests with common beginnings; some wait for a grammar, some are aborted, some steps fail, drafts are
    accepted or not, the cache is reset at times."""

    seed: int
    num_requests: int = 30
    num_drafts: int = 0
    connector: DiceConnector | None = None
    _compiling: list[str] = field(default_factory=list)
    _narrowed: bool = False

    def drive(self, core: EngineCore) -> None:
        """Run until every request has ended."""
        rng = random.Random(self.seed)
        beginning = [rng.randrange(3, 99) for _ in range(20)]
        added = 0
        while added < self.num_requests or core.has_unfinished_requests():
            while added < self.num_requests and rng.random() < 0.6:
                self._add(core, rng, f"q{added}", beginning)
                added += 1
            self._answer_compiler(core, rng)
            if self.connector:
                self.connector.report(core)
            self._disturb(core, rng, 0.03)
            if rng.random() < 0.05:
                core.reset_prefix_cache()
            if added == self.num_requests and len(core.requests) <= 4 and not self._narrowed:
                self._narrow(core)
            plan = core.schedule()
            if not plan.rows:
                continue
            output = self._sample(core, plan, rng)
            self._disturb(core, rng, 0.02)
            failed = rng.random() < 0.01
            core.update(plan.step, ForwardFailure(step=plan.step, why="out of memory") if failed else output)
        if self.connector:
            self.connector.report(core, everything=True)

    def _add(self, core: EngineCore, rng: random.Random, request_id: str, beginning: list[int]) -> None:
        prompt = beginning[: rng.randrange(20)] + [rng.randrange(3, 99) for _ in range(rng.randrange(1, 12))]
        grammar = GrammarSpec(kind="regex", text="[a-z]+") if rng.random() < 0.1 else None
        if grammar:
            self._compiling.append(request_id)
        core.add(
            request(
                request_id,
                prompt,
                rng.randrange(3),
                grammar=grammar,
                max_tokens=rng.randrange(1, 25),
                stop_token_ids=(3, 4),
            )
        )

    def _answer_compiler(self, core: EngineCore, rng: random.Random) -> None:
        if self._compiling and rng.random() < 0.3:
            request_id = self._compiling.pop(0)
            if rng.random() < 0.2:
                core.grammar_failed(request_id, "unbalanced bracket")
            else:
                core.grammar_ready(request_id)

    def _sample(self, core: EngineCore, plan: SchedulerOutput, rng: random.Random) -> ModelRunnerOutput:
        """One token per complete row, and as many of its drafts before it as a die accepts; of some requests none."""
        sampled: list[list[int]] = []
        for row in plan.rows:
            most = rng.randrange(len(row.draft_token_ids) + 1)
            accepted = list(row.draft_token_ids[: 0 if row.serial % 4 == 0 else most])
            complete = row.num_tokens_after >= core.requests[row.request_id].num_tokens
            sampled.append([*accepted, rng.randrange(2, 99)] if complete else [])
        wanted = plan.num_drafts_wanted or [0] * len(plan.rows)
        proposed = [[rng.randrange(2, 99) for _ in range(rng.randrange(most + 1))] for most in wanted]
        drafts = [each if new else [] for each, new in zip(proposed, sampled, strict=True)]
        return ModelRunnerOutput(
            step=plan.step,
            serials=[row.serial for row in plan.rows],
            sampled_token_ids=sampled,
            draft_token_ids=drafts if self.num_drafts else None,
            speculation=_speculation(plan, sampled) if self.num_drafts else None,
        )

    def _narrow(self, core: EngineCore) -> None:
        """Fewer tokens a step, and fewer requests than run by now."""
        self._narrowed, limits = True, core.scheduler.config
        fewer = max(1, limits.max_num_batched_tokens - 3), max(1, limits.max_num_seqs // 3)
        core.reconfigure(msgspec.structs.replace(limits, max_num_batched_tokens=fewer[0], max_num_seqs=fewer[1]))

    @staticmethod
    def _disturb(core: EngineCore, rng: random.Random, chance: float) -> None:
        if core.requests and rng.random() < chance:
            core.abort([rng.choice(list(core.requests))])


def _speculation(plan: SchedulerOutput, sampled: list[list[int]]) -> Speculation:
    """Probabilities by which just those drafts are accepted that the die has accepted."""
    probs = {}
    for row, new in zip(plan.rows, sampled, strict=True):
        num_drafts = len(row.draft_token_ids)
        if num_drafts and new:
            target = [1.0 if place < len(new) - 1 else 0.0 for place in range(num_drafts)]
            certain, even = [1.0] * num_drafts, [0.5] * num_drafts
            probs[row.serial] = DraftProbs(target=target, draft=certain, uniform=even, likely=[])
    return Speculation(probs=probs, matches={})


def record_crowd(
    path: Path, seed: int = 0, num_requests: int = 30, *, connected: bool = False, **engine_args: Any
) -> Trace:
    """The trace of a crowd in a pool so small that requests are preempted."""
    head = header(**{"max_num_batched_tokens": 16, "max_num_seqs": 6, "long_prefill_token_threshold": 5, **engine_args})
    recorder = Recorder.to_file(path, head)
    speculative = head.config.speculative
    connector = DiceConnector(seed) if connected else None
    crowd = Crowd(seed, num_requests, speculative.num_speculative_tokens if speculative else 0, connector)
    crowd.drive(core_of(head, recorder, connector))
    recorder.close()
    return read_trace(path)
