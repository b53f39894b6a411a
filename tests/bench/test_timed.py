"""Requests that come at their time: who is served when, and from when their latencies count."""

from __future__ import annotations

from pathlib import Path

from engine.bench.timed import measure_timed, summary_of_recording
from engine.trace import events as ev
from engine.trace.file import read_trace
from engine.workload import PromptShape, WorkloadRequest

_MS = 1_000_000
#: The first two come together, the third while they run, the last when all is done.
REQUESTS = [
    WorkloadRequest(PromptShape.unlike_others(40, place), output_tokens=20, arrival_ns=arrival * _MS)
    for place, arrival in enumerate((0, 0, 1, 2000))
]


def test_each_is_sent_when_its_time_has_come(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    summary = measure_timed("orrery-tiny", REQUESTS, path, max_model_len=256, num_gpu_blocks_override=40)
    assert summary.completed == 4  # and none that warmed up
    assert summary.total_output_tokens == 80
    assert summary.prefix_cache_hits == 0

    events = read_trace(path).events
    reset = next(place for place, event in enumerate(events) if isinstance(event, ev.CacheReset))
    assert isinstance(answer := events[reset], ev.CacheReset) and answer.done
    sent = [event.ts for event in events[reset:] if isinstance(event, ev.RequestAdded)]
    assert [time - sent[0] >= request.arrival_ns for time, request in zip(sent, REQUESTS, strict=True)] == [True] * 4


def test_a_latency_begins_when_its_request_is_due(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    measured = measure_timed("orrery-tiny", REQUESTS[:3], path, max_model_len=256, num_gpu_blocks_override=40)
    earlier = [*REQUESTS[:2], REQUESTS[2]._replace(arrival_ns=0)]
    mean, mean_if_earlier = (
        summary.latencies_ms["ttft"].mean for summary in (measured, summary_of_recording(path, earlier))
    )
    assert round((mean_if_earlier - mean) * 3, 6) == 1.0  # of three requests, one was due 1 ms before
