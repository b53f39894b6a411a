"""Our own traces as workloads: the same prompts at the same times, and as many tokens as each got in that run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from engine.trace import events as ev
from engine.trace.open_file import open_trace
from engine.workload.reading import Since
from engine.workload.request import WorkloadRequest


def read_trace_requests(path: Path, left_out: Counter[str]) -> Iterator[WorkloadRequest]:
    """The requests of a recorded run, in the order of their arrival; a session is what asked for several completions.

    Args:
        path: the trace.
        left_out: counts those that got no token, or whose prompt came as embeddings, which are not recorded.

    Raises:
        TraceError: it is no trace, or a damaged one.
    """
    trace = open_trace(path)
    num_output_tokens: Counter[int] = Counter()
    for event in trace.events:
        if isinstance(event, ev.UpdateRequest):
            num_output_tokens[event.request] += len(event.appended)
    since = Since(path)
    for event in trace.events:
        if isinstance(event, ev.RequestAdded):
            arrival_ns = since.first(event.ts, event.seq)
            if event.has_prompt_embeds:
                left_out["whose prompt came as embeddings"] += 1
            elif not num_output_tokens[event.request]:
                left_out["without output tokens"] += 1
            else:
                yield WorkloadRequest(
                    list(event.prompt_token_ids),
                    num_output_tokens[event.request],
                    arrival_ns,
                    event.priority,
                    event.cache_salt,
                    event.parent_id,
                )
