"""`fork_trace`: what would have happened from some step on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from engine.core.engine_core import EngineCore
from engine.core.messages import ForwardFailure, ModelRunnerOutput, SchedulerOutput
from engine.core.request import Request
from engine.errors import OrreryError, TraceError
from engine.trace import events as ev
from engine.trace.file import AnyTrace, Trace
from sim.clock import VirtualClock
from sim.cost_model.cost_model import CostModel
from sim.cost_model.typical import cost_model_of
from sim.fork.change import Change
from sim.fork.inputs import Moment, PendingInputs
from sim.fork.tokens import RecordedDrafts, RecordedTokens, WalkedAutomata
from sim.modeled import ModeledExecutor
from sim.recorded_core import RecordedCore

_LEFT_OUT = "left out of the fork"


def fork_trace(trace: AnyTrace, change: Change, cost_model: CostModel | None = None) -> Trace:
    """Run a recording again with a change, to the end of its requests. Returns the new trace.

    Args:
        trace: the recorded run.
        change: what is different, and from when on.
        cost_model: how long a step takes; then inputs come at their times. None: as long as such a step took in the
            recorded run, and inputs come before the same steps as there, so that nothing changed is nothing new.

    Raises:
        ConfigError: a knob is unknown, has a wrong value, or cannot be turned at this step.
        TraceError: there is no such step or request, or the run had KV transfers.
    """
    # Whoever takes part goes over it once: of a trace in its file, every event is decoded here and nowhere else.
    recorded = Trace(trace.header, list(trace.events))
    lines: list[bytes] = []
    encoder, decoder = msgspec.json.Encoder(), msgspec.json.Decoder(ev.AnyEvent)
    # Written down as they come: their lists may be the core's own, and change afterwards.
    header = _Fork(recorded, change, lambda event: lines.append(encoder.encode(event)), cost_model).run()
    return Trace(header, [decoder.decode(line) for line in lines])


class _Tape:
    """Takes the events of the core: those before the fork are in the recording already."""

    def __init__(self, header: ev.Header, clock: VirtualClock, keep: Callable[[ev.Event], object]) -> None:
        self.step = 0
        self._header, self._clock, self._keep = header, clock, keep
        self._seq: int | None = None

    def start(self, last_seq: int) -> None:
        """Keep what comes from now on."""
        self._seq = last_seq

    def emit(self, event: ev.Event) -> None:
        """See `EventSink`."""
        if self._seq is not None:
            self._seq += 1
            event.seq, event.ts, event.step = self._seq, self._clock.now_ns, self.step
            event.engine, event.rank = self._header.engine, self._header.rank
            self._keep(event)


class _Fork:
    def __init__(
        self, trace: AnyTrace, change: Change, keep: Callable[[ev.Event], object], cost_model: CostModel | None
    ) -> None:
        self._trace, self._change, self._keep = trace, change, keep
        first_step, self._position = _where(trace, change)
        turned = change.header(trace.header, first_step)
        self._from_the_start = change.step == first_step
        self.header = msgspec.structs.replace(
            turned if self._from_the_start else trace.header,
            environment={**trace.header.environment, "fork": str(change)},
        )
        self._clock = VirtualClock()
        self._tape = _Tape(trace.header, self._clock, keep)
        self._recorded = RecordedCore(trace, self._tape, WalkedAutomata(trace), self.header)
        self._pending = PendingInputs(trace, self._position, change.step, None if cost_model is None else self._clock)
        self._failure: str | None = None
        """Why the step that runs fails, or the next that does: of a recorded failure that is due."""
        self._tokens = RecordedTokens(trace)
        speculative = turned.config.speculative
        drafting = None if speculative is None else RecordedDrafts(trace, speculative.num_speculative_tokens)
        self._executor = ModeledExecutor(
            cost_model or cost_model_of(trace),
            self._clock,
            self._tokens,
            drafting,
        )

    @property
    def _core(self) -> EngineCore:
        return self._recorded.core

    def run(self) -> ev.Header:
        self._repeat()
        for event in self._vocabulary():
            self._tape.emit(event)
        in_force = self._core.scheduler.config
        if (limits := self._change.limits(in_force)) != in_force:
            self._core.reconfigure(limits)
        self._leave_out(list(self._core.requests.values()))
        while self._pending or self._core.has_unfinished_requests():
            self._let_in(Moment(self._core.scheduler.step + 1, in_flight=False))
            self._step()
        return self.header

    def _repeat(self) -> None:
        """Bring the core to the fork, and keep what was recorded on the way."""
        before = self._trace.events[: self._position]
        if self._from_the_start:
            self._tape.start(0)
        for event in before:
            self._recorded.hear(event)
        for event in before:
            self._clock.advance_to(event.ts)
            if not self._from_the_start:
                self._keep(event)
            elif event.kind is ev.EventClass.OBSERVATION:
                self._tape.emit(msgspec.structs.replace(event))
            if event.kind is ev.EventClass.INPUT and not event.is_answer:
                self._feed(self._turned(event) if self._from_the_start else event)
        self._clock.advance_to(self._trace.events[self._position].ts)
        if not self._from_the_start:
            self._tape.start(before[-1].seq)
            self._land()
        for request in self._core.scheduler.running:
            end = request.sampling_params.max_tokens
            self._executor.take_over(
                request.serial, request.num_tokens, None if end is None else request.num_prompt_tokens + end
            )

    def _land(self) -> None:
        """Steps that were in flight at the fork bring what they brought."""
        awaited = {plan.step for plan in self._core.scheduler.in_flight}
        later = [event for event in self._trace.events[self._position :] if event.step in awaited] if awaited else []
        for event in later:
            self._recorded.hear(event)
        for event in later:
            if isinstance(event, ev.StepOutput | ev.ExecutorFailed):
                self._feed(event)

    def _vocabulary(self) -> Iterator[ev.Event]:
        """What tokens mean that are said only after the fork."""
        for event in self._trace.events[self._position :]:
            if isinstance(event, ev.TokenPieces):
                yield msgspec.structs.replace(event)

    def _feed(self, event: ev.Event) -> None:
        try:
            refusal = self._recorded.feed(event)
        except (OrreryError, ValueError, LookupError) as error:
            refusal = str(error)
        if refusal:
            raise TraceError(f"The run cannot be forked: the core refuses event {event.seq}: {refusal}")

    def _let_in(self, moment: Moment) -> None:
        """Feed the inputs that are due."""
        core = self._core
        while (event := self._pending.next_due(moment)) is not None:
            if isinstance(event, ev.RequestAdded) and event.request_id in core.requests:
                return  # its client waited for the answer to its last request of that name
            self._pending.take()
            if isinstance(event, ev.ExecutorFailed):
                self._failure = event.why
                continue
            self._feed(self._turned(event))
            if isinstance(event, ev.RequestAdded):
                self._leave_out([core.requests[event.request_id]])

    def _turned(self, event: ev.Event) -> ev.Event:
        """An input as it comes in the other run: of limits that change, those that the fork turns stay as it says."""
        if not isinstance(event, ev.ConfigChanged):
            return event
        limits = msgspec.structs.replace(event.scheduler, policy=self._core.scheduler.config.policy)
        return msgspec.structs.replace(event, scheduler=self._change.limits(limits))

    def _leave_out(self, requests: list[Request]) -> None:
        left_out = [request.request_id for request in requests if request.serial in self._change.without]
        if left_out:
            self._core.abort(left_out, _LEFT_OUT)

    def _step(self) -> None:
        core, executor = self._core, self._executor
        if not core.has_unfinished_requests() and not self._pending.was_in_vain(core.scheduler.step + 1):
            if self._pending:
                self._pending.hasten(core.scheduler.step + 1)
            return
        had_running = bool(core.scheduler.running)
        plan = core.schedule()
        if not plan.rows:
            if not had_running:  # else it preempted them, and the next one goes on
                self._wait()
            return
        executor.execute_model(plan)
        output = self._refuse(plan, executor.sample_tokens(core.grammar_bitmask(plan.step)))
        self._let_in(Moment(plan.step, in_flight=True))
        failure, self._failure = self._failure, None
        outputs = core.update(plan.step, output if failure is None else ForwardFailure(step=plan.step, why=failure))
        for news in outputs.outputs:
            if news.finish_reason is not None:
                executor.finished(news.serial)
            elif self._ends_in_a_stop_string(news.request_id):
                core.abort([news.request_id], ev.STOP_STRING)
                executor.finished(news.serial)

    def _refuse(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> ModelRunnerOutput:
        """Where no token could be sampled when it was recorded, none can be now."""
        sampled, drafts = list(output.sampled_token_ids), output.draft_token_ids
        errors: dict[int, str] = {}
        for index, row in enumerate(plan.rows):
            num_output_tokens = self._core.requests[row.request_id].num_output_tokens + len(sampled[index])
            if sampled[index] and (why := self._tokens.refusal(row.serial, num_output_tokens)):
                errors[row.serial], sampled[index] = why, []
                if drafts is not None:
                    drafts[index] = []
        return msgspec.structs.replace(output, sampled_token_ids=sampled, errors=errors) if errors else output

    def _ends_in_a_stop_string(self, request_id: str) -> bool:
        request = self._core.requests[request_id]
        return self._pending.ends_in_a_stop_string(request.serial, request.num_output_tokens)

    def _wait(self) -> None:
        """Nobody can run before an input comes."""
        core, next_step = self._core, self._core.scheduler.step + 1
        if core.has_unfinished_requests() and not self._pending:
            names = ", ".join(f"r{request.serial}" for request in core.requests.values())
            raise TraceError(f"The fork comes to no end: {names} wait for an answer that the recording does not hold.")
        if self._pending and not self._pending.was_in_vain(next_step):
            self._pending.hasten(next_step)


def _where(trace: AnyTrace, change: Change) -> tuple[int, int]:
    """The recorded run's first step, and the position at which the step of the fork is asked for.

    Raises:
        TraceError: there is no such step or request, or a collaborator answered that a fork does not have.
    """
    if trace.types & {ev.KVTransferMatched, ev.KVTransferFinished}:
        raise TraceError("A run whose KV came from another engine cannot be forked: only that one knows what it sends.")
    first = last = position = None
    serials = set()
    for place, event in enumerate(trace.events):
        if isinstance(event, ev.ScheduleCalled):
            first, last = event.step if first is None else first, event.step
            if event.step == change.step:
                position = place
        elif isinstance(event, ev.RequestAdded):
            serials.add(event.request)
    if first is None:
        raise TraceError("A trace without a step cannot be forked.")
    if position is None:
        raise TraceError(f"There is no step {change.step} to fork at: the trace holds steps {first} to {last}.")
    unknown = [serial for serial in change.without if serial not in serials]
    if unknown:
        raise TraceError(f"There is no request r{unknown[0]} in this trace: it has r0 to r{max(serials, default=0)}.")
    return first, position
