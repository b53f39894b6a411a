"""The engine without its front door: core and executor, stepped by hand."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import torch

from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.core.messages import EngineCoreRequest
from engine.executor.uniproc import UniProcExecutor
from engine.sampling_params import SamplingParams
from scripts.gpu_checks.report import Settings

_COMMON = frozenset(("seq", "ts", "step", "engine", "rank"))


class Engine:
    """Core and executor, stepped by hand, with the time of every step; no tokenizer and no text."""

    def __init__(self, model: str, **engine_args: Any) -> None:
        config = EngineConfig.from_args(model, enable_prefix_caching=False, **engine_args)
        self.executor = UniProcExecutor(config)
        self.facts, self.kv_cache = self.executor.initialize()
        self.core = EngineCore(config, self.kv_cache, self.facts.max_model_len)
        self.steps: list[tuple[int, int, float]] = []
        """Tokens, requests and seconds of each step of the last run."""

    def startup(self) -> list[Any]:
        """How it came to be ready: the events that a trace would begin with."""
        events = [msgspec.to_builtins(event) for event in self.executor._worker.startup]
        return [{name: value for name, value in event.items() if name not in _COMMON} for event in events]

    def run(self, prompts: list[list[int]], num_tokens: int, **sampling: Any) -> list[list[int]]:
        """Complete prompts by so many tokens each; returns the tokens."""
        params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, **{"temperature": 0.0, **sampling})
        serials = [
            self.core.add(EngineCoreRequest(request_id=str(i), prompt_token_ids=tuple(ids), sampling_params=params))
            for i, ids in enumerate(prompts)
        ]
        outputs: dict[int, list[int]] = {serial: [] for serial in serials}
        self.steps = []
        while self.core.has_unfinished_requests():
            started = time.perf_counter()
            plan = self.core.schedule()
            self.executor.execute_model(plan)
            for news in self.core.update(plan.step, self.executor.sample_tokens(None)).outputs:
                outputs[news.serial] += news.new_token_ids
            seconds = time.perf_counter() - started
            self.steps.append((plan.total_num_scheduled_tokens, len(plan.rows), seconds))
        return [outputs[serial] for serial in serials]

    def decode_seconds(self) -> float:
        """The median step of the last run in which all requests decode, the first few left out."""
        most = max(requests for _, requests, _ in self.steps)
        decodes = [seconds for tokens, requests, seconds in self.steps if tokens == requests == most]
        return statistics.median(decodes[min(4, len(decodes) // 4) :])


@contextmanager
def running(model: str, settings: Settings, **engine_args: Any) -> Iterator[Engine]:
    """An engine that gives its memory back."""
    engine = Engine(model, **{"device": settings.device, **engine_args})
    try:
        yield engine
    finally:
        engine.executor.shutdown()
        del engine
        gc.collect()
        if settings.cuda:
            torch.cuda.empty_cache()


def prompts_of(num_prompts: int, length: int, vocab_size: int) -> list[list[int]]:
    """Random token ids, the same for the same numbers."""
    generator = torch.Generator().manual_seed(num_prompts)
    token_ids: list[list[int]] = torch.randint(3, vocab_size, (num_prompts, length), generator=generator).tolist()
    return token_ids
