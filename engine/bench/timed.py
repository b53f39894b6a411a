"""An open-loop run: every request is sent when its time has come, whether or not those before it are done.

The run is recorded, and its figures are those of the recording. A latency begins at the time that the workload says,
so that a request which came in the middle of a step has waited for the rest of it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.frontend.prompts import Prompt
from engine.llm_engine import LLMEngine
from engine.metrics import MetricsCollector
from engine.metrics.summary import MetricsSummary
from engine.metrics.tally import Tally
from engine.sampling_params import SamplingParams
from engine.trace import events as ev
from engine.trace.file import read_trace
from engine.workload.prompt_shape import PromptShape
from engine.workload.request import WorkloadRequest

_NS_PER_S = 1e9
_WARM_UP = WorkloadRequest(PromptShape.unlike_others(128, 0), output_tokens=8)


def measure_timed(
    model: str, requests: Sequence[WorkloadRequest], trace: Path, percentiles: Sequence[float] = (99,), **args: Any
) -> MetricsSummary:
    """Serve a workload with a new engine that has warmed up.

    Args:
        model: as the engine takes it.
        requests: in the order of their arrival; the first is sent at once.
        trace: where the run is recorded, at level control.
        percentiles: which, of the latencies.
        args: of the engine, under vLLM's names.

    Raises:
        ConfigError: an argument is unknown or out of range.
        ModelError: the model is missing or does not fit.
        RequestError: a prompt is too long.
    """
    with LLMEngine.from_engine_args(model, trace=trace, trace_level="control", **args) as engine:
        serve_on_time(engine, [_WARM_UP], "warm-up-")
        engine.reset_prefix_cache()
        serve_on_time(engine, requests)
    return summary_of_recording(trace, requests, percentiles)


def serve_on_time(engine: LLMEngine, requests: Sequence[WorkloadRequest], prefix: str = "") -> None:
    """Serve requests until all are done, each from its time on; its id is `prefix` and its place in the workload."""
    upcoming = deque(enumerate(requests))
    started = time.monotonic_ns()
    while upcoming or engine.has_unfinished_requests():
        now = time.monotonic_ns() - started
        while upcoming and upcoming[0][1].arrival_ns <= now:
            place, request = upcoming.popleft()
            _add(engine, f"{prefix}{place}", request)
        if engine.has_unfinished_requests():
            engine.step()
        elif upcoming:
            time.sleep(max(0.0, (upcoming[0][1].arrival_ns - now) / _NS_PER_S))


def summary_of_recording(
    trace: Path, requests: Sequence[WorkloadRequest], percentiles: Sequence[float] = (99,)
) -> MetricsSummary:
    """The figures of a recorded run, from the end of its warm-up on.

    Raises:
        TraceError: the recording cannot be read.
    """
    recording = read_trace(trace)
    collector = MetricsCollector(recording.header.kv_cache)
    is_warm, first_sent_ns = False, None
    for event in recording.events:
        if is_warm:
            if first_sent_ns is None and isinstance(event, ev.RequestAdded):
                first_sent_ns = event.ts
            collector.feed(event)
        is_warm = is_warm or isinstance(event, ev.CacheReset)
    run = collector.metrics()
    for request in run.requests:
        request.arrival_ns = (first_sent_ns or 0) + requests[int(request.request_id)].arrival_ns
    return Tally().and_those(run.requests, run.iterations).summarise(percentiles)


def _add(engine: LLMEngine, request_id: str, request: WorkloadRequest) -> None:
    prompt = request.prompt
    if isinstance(prompt, PromptShape):
        prompt = prompt.token_ids(engine.model.vocab_size)
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=request.output_tokens, detokenize=False)
    as_given: Prompt = prompt if isinstance(prompt, str) else {"prompt_token_ids": prompt}
    engine.add_request(request_id, as_given, params, priority=request.priority)
