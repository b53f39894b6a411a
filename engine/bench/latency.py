"""`orrery bench latency`: seconds that one batch takes, as `vllm bench latency` measures them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from engine.bench.throughput import require_room
from engine.metrics.distribution import Distribution
from engine.sampling_params import SamplingParams
from engine.workload.synthetic import random_requests

if TYPE_CHECKING:
    from engine.llm import LLM

PERCENTAGES = (10, 25, 50, 75, 90, 99)

Rounds = Callable[[str, int], Iterable[int]]
"""Counts the iterations of a named phase, e.g. under a progress bar."""


def measure_latency(
    llm: LLM,
    *,
    input_len: int,
    output_len: int,
    batch_size: int,
    n: int,
    num_iters_warmup: int,
    num_iters: int,
    disable_detokenize: bool,
    rounds: Rounds,
) -> list[float]:
    """Seconds from the prompts of a batch to its last token, once per counted iteration.

    Args:
        llm: the engine.
        input_len: random tokens per prompt.
        output_len: tokens per completion; the end of sequence is ignored.
        batch_size: prompts.
        n: completions per prompt.
        num_iters_warmup: iterations before those that count.
        num_iters: iterations that count.
        disable_detokenize: make no text of the output.
        rounds: see `Rounds`.

    Raises:
        ConfigError: the lengths are more than the engine takes.
        WorkloadError: a length is below 1.
    """
    token_ids = range(llm.llm_engine.model.vocab_size)
    requests = random_requests(
        batch_size, random.Random(0), token_ids, input_tokens=input_len, output_tokens=output_len
    )
    require_room(llm, requests)
    prompts: list[Any] = [{"prompt_token_ids": request.prompt} for request in requests]
    params = SamplingParams(
        n=n, temperature=1.0, ignore_eos=True, max_tokens=output_len, detokenize=not disable_detokenize
    )

    def seconds() -> float:
        started = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - started

    for _ in rounds("Warmup iterations", num_iters_warmup):
        seconds()
    return [seconds() for _ in rounds("Bench iterations", num_iters)]


def report(model: str, latencies: list[float]) -> dict[str, Any]:
    """The result under the keys of `vllm bench latency --output-json`."""
    distribution = Distribution.of(latencies, PERCENTAGES)
    return {
        "model_id": model,
        "avg_latency": distribution.mean,
        "latencies": latencies,
        "percentiles": {str(percentage): value for percentage, value in distribution.percentiles.items()},
    }
