"""An engine's run on the virtual clock: requests come when they came, steps take the time they took.

Replay feeds a recording's inputs in their order. Here only the clock decides what has come by the time a step is
planned, as in any simulation; so it shows that times alone, rightly predicted, lead to the engine's own decisions.
"""

from __future__ import annotations

from engine.core.engine_core import EngineCore
from engine.errors import TraceError
from engine.trace import events as ev
from engine.trace.file import AnyTrace
from engine.trace.recorder import EventSink
from sim.clock import VirtualClock
from sim.recorded import RecordedExecutor, recorded_request

_Arrival = ev.RequestAdded | ev.RequestAborted | ev.CacheResetAsked


def run_recording(trace: AnyTrace, sink: EventSink) -> None:
    """Serve the requests of a recorded run on its own times; the core's events go to `sink`.

    Raises:
        TraceError: of a run whose steps overlapped, or whose core had collaborators: only replay knows their answers.
    """
    _require_plain(trace)
    header, clock = trace.header, VirtualClock()
    core = EngineCore(header.config, header.kv_cache, header.model.max_model_len, sink)
    executor = RecordedExecutor(trace.events)
    arrivals = [event for event in trace.events if isinstance(event, _Arrival)]
    arrivals.reverse()
    answers = {event.step: event.ts for event in trace.events if isinstance(event, ev.StepOutput)}
    for called in (event for event in trace.events if isinstance(event, ev.ScheduleCalled)):
        clock.advance_to(called.ts)
        while arrivals and arrivals[-1].ts <= clock.now_ns:
            _let_in(core, arrivals.pop())
        plan = core.schedule()
        if plan.step in answers:
            executor.execute_model(plan)
            output = executor.sample_tokens(core.grammar_bitmask(plan.step))
            clock.advance_to(answers[plan.step])
            core.update(plan.step, output)
    for arrival in reversed(arrivals):
        _let_in(core, arrival)


def _require_plain(trace: AnyTrace) -> None:
    if trace.header.config.scheduler.async_scheduling:
        raise TraceError("The steps of an asynchronous run overlap: it cannot be run again on its times.")
    for event in trace.events:
        if isinstance(event, (ev.GrammarRequested, ev.KVTransferMatched, ev.ExecutorFailed)):
            raise TraceError(
                f"A run with {ev.tag_of(event)} cannot be run again on its times alone: `orrery replay` can."
            )


def _let_in(core: EngineCore, event: _Arrival) -> None:
    if isinstance(event, ev.CacheResetAsked):
        core.reset_prefix_cache()
    elif isinstance(event, ev.RequestAborted):
        ids = {request.serial: request_id for request_id, request in core.requests.items()}
        core.abort([ids[serial] for serial in event.requests], event.cause)
    else:
        core.add(recorded_request(event))
