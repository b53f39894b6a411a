"""A run as OpenTelemetry spans: one per request, and one for each thing it did in the meantime.

The file holds OTLP/JSON, an export request a line, as OpenTelemetry's collector writes and reads files. Attributes have
the names of the semantic conventions for generative AI, and beside them those that vLLM still uses. A trace has no
date: its times count from the beginning of 1970.

::

    text_completion orrery-tiny     ├──────────────────────────────────────────┤
      queued                        ├────┤
      prefill                            ├───────┤
      decode                                     ├─────────────────────────────┤
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec

from engine.metrics import RequestMetrics
from engine.trace import events as ev
from sim.export.walk import Report, walk

_INTERNAL, _SERVER = 1, 2
_OK, _ERROR = 1, 2
_NS_PER_S = 1e9
#: Spans of one line.
_BATCH = 256

_OPERATION = "text_completion"


def export_otlp(header: ev.Header, events: Iterable[ev.Event], path: Path) -> Report:
    """Write the requests of a trace as OTLP/JSON lines.

    Args:
        header: of the trace.
        events: of the trace, in order.
        path: the file.

    Raises:
        OSError: the file cannot be written.
    """
    spans = _Spans(header)
    with path.open("wb") as file:
        batch: list[dict[str, Any]] = []
        for part in walk(header, events):
            batch.extend(spans.of(part))
            if len(batch) >= _BATCH:
                _write(file, header, batch)
                batch.clear()
        if batch:
            _write(file, header, batch)
    return spans.report


def _write(file: IO[bytes], header: ev.Header, spans: list[dict[str, Any]]) -> None:
    resource = _attributes(
        {
            "service.name": "orrery",
            "service.version": header.engine_version,
            "service.instance.id": f"engine-{header.engine}",
        }
    )
    scope = {"name": "orrery", "version": header.engine_version}
    lines = {
        "resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [{"scope": scope, "spans": spans}]}]
    }
    file.write(msgspec.json.encode(lines) + b"\n")


@dataclass
class _Life:
    """A request while it lives."""

    added: ev.RequestAdded
    moments: list[dict[str, Any]] = field(default_factory=list)
    phases: list[tuple[str, int]] = field(default_factory=list)
    """What it did, and since when."""


class _Spans:
    """Follows the requests; a request's spans come when it is over."""

    def __init__(self, header: ev.Header) -> None:
        self.report = Report()
        self._header = header
        self._lives: dict[int, _Life] = {}
        self._now = 0

    def of(self, part: object) -> Iterator[dict[str, Any]]:
        if isinstance(part, RequestMetrics):
            yield from self._finished(part)
        elif isinstance(part, ev.Event):
            self._now = part.ts
            followed = _FOLLOWED.get(type(part))
            if followed is not None:
                followed(self, part)
            elif type(part) not in _IN_THE_NUMBERS:
                self.report.left_out[ev.tag_of(part)] += 1

    def _added(self, event: ev.RequestAdded) -> None:
        self._lives[event.request] = _Life(event, phases=[("queued", event.ts)])

    def _row(self, event: ev.ScheduleRequest) -> None:
        if event.admission != "running":
            self._enter(event.request, event.phase, event.ts)

    def _preempted(self, event: ev.SchedulePreempted) -> None:
        self._enter(event.victim, "preempted", event.ts)

    def _updated(self, event: ev.UpdateRequest) -> None:
        life = self._lives.get(event.request)
        if event.appended and life is not None and life.phases[-1][0] == "prefill":
            life.moments.append({"name": "token", "timeUnixNano": str(event.ts)})
            self._enter(event.request, "decode", event.ts)

    def _enter(self, serial: int, phase: str, time_ns: int) -> None:
        if life := self._lives.get(serial):
            life.phases.append((phase, time_ns))

    def _finished(self, request: RequestMetrics) -> Iterator[dict[str, Any]]:
        life = self._lives.pop(request.serial)
        trace_id = _digest(f"{self._header.kv_cache.none_hash} {request.serial} {request.request_id}", 16)
        span_id = _digest(trace_id, 8)
        end = self._now if request.finished_ns is None else request.finished_ns
        status = {"code": _ERROR, "message": "error"} if request.finish_reason == "error" else {"code": _OK}
        yield {
            "traceId": trace_id,
            "spanId": span_id,
            "name": f"{_OPERATION} {self._header.model.name}",
            "kind": _SERVER,
            "startTimeUnixNano": str(request.arrival_ns),
            "endTimeUnixNano": str(end),
            "attributes": _attributes(self._request_attributes(request, life.added)),
            "events": life.moments,
            "status": status if request.finish_reason else {},
        }
        ends = [start for _, start in life.phases[1:]] + [end]
        for number, ((phase, start), phase_end) in enumerate(zip(life.phases, ends, strict=True)):
            yield {
                "traceId": trace_id,
                "spanId": _digest(f"{trace_id} {number}", 8),
                "parentSpanId": span_id,
                "name": phase,
                "kind": _INTERNAL,
                "startTimeUnixNano": str(start),
                "endTimeUnixNano": str(phase_end),
                "status": {},
            }
        self.report.written["requests"] += 1
        self.report.written["spans"] += 1 + len(ends)

    def _request_attributes(self, request: RequestMetrics, added: ev.RequestAdded) -> dict[str, Any]:
        params, model = added.sampling_params, self._header.model.name
        return {
            "gen_ai.operation.name": _OPERATION,
            "gen_ai.provider.name": "orrery",
            "gen_ai.request.model": model,
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.top_k": params.top_k,
            "gen_ai.request.seed": params.seed,
            "gen_ai.request.stop_sequences": params.stop or None,
            "gen_ai.request.frequency_penalty": params.frequency_penalty,
            "gen_ai.request.presence_penalty": params.presence_penalty,
            "gen_ai.response.id": request.request_id,
            "gen_ai.response.model": model,
            "gen_ai.response.finish_reasons": [request.finish_reason] if request.finish_reason else None,
            "gen_ai.usage.input_tokens": request.num_prompt_tokens,
            "gen_ai.usage.output_tokens": request.num_output_tokens,
            "gen_ai.usage.cache_read.input_tokens": request.num_cached_tokens,
            "error.type": "error" if request.finish_reason == "error" else None,
            # The names of vLLM.
            "gen_ai.request.id": request.request_id,
            "gen_ai.request.n": params.n,
            "gen_ai.usage.prompt_tokens": request.num_prompt_tokens,
            "gen_ai.usage.completion_tokens": request.num_output_tokens,
            "gen_ai.latency.time_in_queue": _seconds(request.queue_ns),
            "gen_ai.latency.time_to_first_token": _seconds(request.ttft_ns),
            "gen_ai.latency.e2e": _seconds(request.e2el_ns),
            "gen_ai.latency.time_in_model_prefill": _seconds(request.prefill_ns),
            "gen_ai.latency.time_in_model_decode": _seconds(request.decode_ns),
        }


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / _NS_PER_S


def _digest(text: str, num_bytes: int) -> str:
    """An id that is the same every time: hexadecimal, as OTLP/JSON has it."""
    return hashlib.sha256(text.encode()).hexdigest()[: 2 * num_bytes]


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value is not None]


def _value(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}  # 64 bits: a string in JSON
        case float():
            return {"doubleValue": value}
        case list() | tuple():
            return {"arrayValue": {"values": [_value(each) for each in value]}}
        case _:
            return {"stringValue": str(value)}


_FOLLOWED: dict[type[ev.Event], Callable[[_Spans, Any], None]] = {
    ev.RequestAdded: _Spans._added,
    ev.ScheduleRequest: _Spans._row,
    ev.SchedulePreempted: _Spans._preempted,
    ev.UpdateRequest: _Spans._updated,
}
#: What these say is in the attributes and spans of a request.
_IN_THE_NUMBERS = {ev.RequestStatusChanged, ev.RequestFinished, ev.KVLookup}
