"""A run as Perfetto draws it.

- *steps*: a slice each, with its composition; *worker*: how the worker spent it;
- every request: an asynchronous slice, in it *queued*, *prefill*, *decode* and *preempted*, and its first token;
- counters: KV blocks in use, free and cached, the running and the waiting queue, the tokens of a step;
- arrows: from the step that admits a request over those that preempt and resume it to the one that ends it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from engine.metrics import IterationMetrics, RequestMetrics
from engine.trace import events as ev
from sim.export.chrome_trace import ChromeTrace, Lanes
from sim.export.walk import Report, walk

_WORKER_TRACK, _STEP_TRACK = 1, 100


def export_perfetto(header: ev.Header, events: Iterable[ev.Event], path: Path) -> Report:
    """Write a trace as Chrome trace JSON.

    Args:
        header: of the trace.
        events: of the trace, in order.
        path: the file.

    Raises:
        OSError: the file cannot be written.
    """
    about = {"made by": f"Orrery {header.engine_version}", "model": header.model.name, "device": header.device}
    with path.open("wb") as file, ChromeTrace(file, header.engine, about) as trace:
        trace.name_process(f"engine {header.engine}: {header.model.name}")
        drawing = _Drawing(trace, header.kv_cache.num_gpu_blocks - 1)
        for part in walk(header, events):
            drawing.draw(part)
        drawing.finish()
    return drawing.report


class _Place(NamedTuple):
    """Where an arrow touches a step."""

    track: int
    time_ns: int


class _Drawing:
    def __init__(self, trace: ChromeTrace, usable_blocks: int) -> None:
        self.report = Report()
        self._trace = trace
        self._usable_blocks = usable_blocks
        self._steps = Lanes(trace, _STEP_TRACK, "steps")
        self._worker = Lanes(trace, _WORKER_TRACK, "worker")
        self._ids: dict[int, str] = {}
        self._phases: dict[int, str] = {}
        """What each living request is doing, by serial."""
        self._rows: dict[int, list[int]] = {}
        """Serials by step, until the step is drawn."""
        self._touched: defaultdict[int, list[int]] = defaultdict(list)
        """By step the serials whose arrow touches it."""
        self._arrows = _Arrows(trace, self.report)
        self._cached_blocks: set[int] = set()
        self._now = 0

    def draw(self, part: ev.Event | IterationMetrics | RequestMetrics) -> None:
        if isinstance(part, IterationMetrics):
            self._draw_step(part)
        elif isinstance(part, ev.Event):
            self._now = part.ts
            shown = _SHOWN.get(type(part))
            if shown is not None:
                shown(self, part)
            elif type(part) not in _SEEN_OTHERWISE:
                self.report.left_out[ev.tag_of(part)] += 1

    def finish(self) -> None:
        """End what is not over."""
        for serial in sorted(self._ids):
            self._end(serial, {"finish_reason": None})
        self._arrows.finish()

    # --- requests -----------------------------------------------------------------------------------------------

    def _added(self, event: ev.RequestAdded) -> None:
        self._ids[event.request] = event.request_id
        self.report.written["requests"] += 1
        args = {
            "serial": event.request,
            "prompt tokens": len(event.prompt_token_ids),
            "priority": event.priority,
            "max_tokens": event.sampling_params.max_tokens,
        }
        self._trace.begin(event.request, event.request_id, event.ts, args)
        self._enter(event.request, "queued", event.step)

    def _row(self, event: ev.ScheduleRequest) -> None:
        if event.admission != "running":
            phase = "prefill" if event.phase == "prefill" else "decode"
            self._enter(event.request, phase, event.step)
            self._touched[event.step].append(event.request)

    def _preempted(self, event: ev.SchedulePreempted) -> None:
        self._enter(event.victim, "preempted", event.step)
        self._touched[event.step].append(event.victim)

    def _updated(self, event: ev.UpdateRequest) -> None:
        if event.appended and self._phases.get(event.request) == "prefill":
            self._trace.instant(event.request, "token", event.ts, {"step": event.step})
            self._enter(event.request, "decode", event.step)

    def _finished(self, event: ev.RequestFinished) -> None:
        if event.request in self._ids:
            args = {
                "finish_reason": event.finish_reason,
                "output tokens": event.num_output_tokens,
                "cached tokens": event.num_cached_tokens,
                "preemptions": event.num_preemptions,
            }
            self._end(event.request, args)
            self._touched[event.step].append(event.request)
            self._arrows.last(event.request, event.step)

    def _enter(self, serial: int, phase: str, step: int) -> None:
        if serial not in self._ids:
            return
        if serial in self._phases:
            self._trace.end(serial, self._phases[serial], self._now, {})
        self._phases[serial] = phase
        self._trace.begin(serial, phase, self._now, {"step": step})

    def _end(self, serial: int, args: dict[str, Any]) -> None:
        self._trace.end(serial, self._phases.pop(serial), self._now, {})
        self._trace.end(serial, self._ids.pop(serial), self._now, args)

    # --- steps --------------------------------------------------------------------------------------------------

    def _started(self, event: ev.StepStarted) -> None:
        self._trace.counter("requests", event.ts, {"running": len(event.running), "waiting": event.num_waiting})

    def _scheduled(self, event: ev.StepScheduled) -> None:
        self._rows[event.step] = event.requests
        used = self._usable_blocks - event.free_blocks
        self._trace.counter("KV blocks", event.ts, {"in use": used, "free": event.free_blocks})
        self._trace.counter("KV blocks cached", event.ts, {"cached": len(self._cached_blocks)})

    def _executed(self, event: ev.StepExecuted) -> None:
        durations = {"prepare": event.prepare_ns, "forward": event.forward_ns, "sample": event.sample_ns}
        start = max(0, event.ts - sum(durations.values()))
        track = self._worker.lane_for(start, event.ts)
        args = {"step": event.step, "mode": event.mode, "tokens": event.num_tokens, "padded": event.num_padded_tokens}
        for name, duration in durations.items():
            end = min(start + duration, event.ts)
            self._trace.slice(track, name, start, end, args)
            start = end

    def _draw_step(self, step: IterationMetrics) -> None:
        track = self._steps.lane_for(step.started_ns, step.ended_ns)
        args = {
            "prefill tokens": step.prefill_tokens,
            "decode tokens": step.decode_tokens,
            "output tokens": step.output_tokens,
            "token budget": step.token_budget,
            "preemptions": step.preemptions,
            "prefix cache hit tokens": step.hit_tokens,
            "evicted blocks": step.evictions,
            "requests": self._rows.pop(step.step, []),
        }
        self._trace.slice(track, f"step {step.step}", step.started_ns, step.ended_ns, args)
        tokens = {"prefill": step.prefill_tokens, "decode": step.decode_tokens}
        self._trace.counter("tokens", step.started_ns, tokens)
        self.report.written["steps"] += 1
        # Just within the slice; steps in flight together begin, but need not end, in their order.
        place = _Place(track, min(step.started_ns + 1, step.ended_ns))
        for serial in dict.fromkeys(self._touched.pop(step.step, ())):
            self._arrows.touch(serial, step.step, place)

    # --- blocks -------------------------------------------------------------------------------------------------

    def _cached(self, event: ev.KVCached) -> None:
        self._cached_blocks.update(event.block_ids)

    def _allocated(self, event: ev.KVAllocated) -> None:
        self._cached_blocks.difference_update(event.evicted_block_ids)

    def _uncached(self, event: ev.KVUncached) -> None:
        self._cached_blocks.difference_update(event.block_ids)

    def _reset(self, event: ev.CacheReset) -> None:
        if event.done:
            self._cached_blocks.clear()


class _Arrows:
    """Arrows from step to step, one chain per request. Each point is held back until it is known to be the last."""

    def __init__(self, trace: ChromeTrace, report: Report) -> None:
        self._trace = trace
        self._report = report
        self._held: dict[int, _Place] = {}
        self._begun: set[int] = set()
        self._last_steps: dict[int, int] = {}

    def last(self, serial: int, step: int) -> None:
        """No later step will be touched."""
        self._last_steps[serial] = step

    def touch(self, serial: int, step: int, place: _Place) -> None:
        """Draw the point before this one."""
        if serial in self._held:
            self._draw("t" if serial in self._begun else "s", serial, self._held[serial])
            self._begun.add(serial)
        self._held[serial] = place
        if self._last_steps.get(serial) == step:
            del self._last_steps[serial]
            self._end(serial)

    def finish(self) -> None:
        """End the chains of the requests that live on."""
        for serial in sorted(self._held):
            self._end(serial)

    def _end(self, serial: int) -> None:
        place = self._held.pop(serial)
        if serial in self._begun:
            self._begun.remove(serial)
            self._draw("f", serial, place)
            self._report.written["arrows"] += 1

    def _draw(self, phase: str, serial: int, place: _Place) -> None:
        self._trace.flow(phase, serial, "request", place.track, place.time_ns)


_SHOWN: dict[type[ev.Event], Callable[[_Drawing, Any], None]] = {
    ev.RequestAdded: _Drawing._added,
    ev.ScheduleRequest: _Drawing._row,
    ev.SchedulePreempted: _Drawing._preempted,
    ev.UpdateRequest: _Drawing._updated,
    ev.RequestFinished: _Drawing._finished,
    ev.StepStarted: _Drawing._started,
    ev.StepScheduled: _Drawing._scheduled,
    ev.StepExecuted: _Drawing._executed,
    ev.KVCached: _Drawing._cached,
    ev.KVAllocated: _Drawing._allocated,
    ev.KVUncached: _Drawing._uncached,
    ev.CacheReset: _Drawing._reset,
}
#: What these say is seen in the slices of steps and requests.
_SEEN_OTHERWISE = {ev.ScheduleCalled, ev.StepOutput, ev.RequestStatusChanged, ev.KVLookup, ev.KVFreed}
