"""Every decision of a step in order; and why the other events are none."""

from __future__ import annotations

from typing import Literal, NamedTuple

from engine.trace import events as ev
from sim.timeline import StepView
from viz.explain import memory, output, scheduling
from viz.explain.rules import RULES, Rule
from viz.explain.telling import Said, Tellers, Telling
from viz.source import Place

#: When a decision was made: since the step before, while this one was planned, or when its output was back.
Phase = Literal["before", "planned", "output"]


class Reason(NamedTuple):
    """One decision in words."""

    seq: int
    event_type: str
    request: int | None
    """Serial of the request it is about."""
    sentence: str
    rule: Rule
    detail: bool
    """Bookkeeping that follows from another decision; may be left out where room is short."""
    phase: Phase

    @property
    def name(self) -> str:
        """Short name of the request; empty if it is about all of them."""
        return "" if self.request is None else f"r{self.request}"

    @property
    def place(self) -> Place:
        """The function that decided."""
        return self.rule.place


TELLERS: Tellers = {**scheduling.TELLERS, **memory.TELLERS, **output.TELLERS}

_CALL, _ANSWER, _SEEN = "the call of a client or a loop", "the answer of a collaborator", "an observation"

#: What is not told: by type, why no decision is in it, or where its decision is told.
NO_DECISION: dict[type[ev.Event], str] = {
    ev.RequestAdded: f"{_CALL}; what the scheduler makes of it is told where it is admitted or has to wait",
    ev.RequestAborted: f"{_CALL}; `request.finished` tells what came of it",
    ev.ScheduleCalled: _CALL,
    ev.CacheResetAsked: f"{_CALL}; `cache.reset_done` is the answer",
    ev.GrammarReady: f"{_ANSWER}; the request may run from its next turn on",
    ev.GrammarFailed: f"{_ANSWER}; `request.finished` tells what came of it",
    ev.StepOutput: f"{_ANSWER}: the executor's; one `update.request` per row tells what came of it",
    ev.SpecProbs: f"{_ANSWER}; `spec.verdict` follows from it",
    ev.KVTransferFinished: f"{_ANSWER}; `kv.held` or `kv.freed` tells what came of it",
    ev.KVTransferDone: f"{_ANSWER}; told when the request has its next turn, or its blocks return to the pool",
    ev.StepStarted: "the situation in which the step is planned",
    ev.TokenPieces: f"{_SEEN}: the text of token ids",
    ev.OutputText: f"{_SEEN}: text made of new tokens",
    ev.StepExecuted: f"{_SEEN}: how long the worker took",
    ev.ForwardInputs: f"{_SEEN}: the tensors of the forward pass",
    ev.ForwardLogits: f"{_SEEN}: the likeliest tokens",
    ev.DeviceInitialized: f"{_SEEN}: the start of the worker",
    ev.ModelLoaded: f"{_SEEN}: the start of the worker",
    ev.MemoryProfiled: f"{_SEEN}: the start of the worker",
    ev.KVCacheAllocated: f"{_SEEN}: the start of the worker",
    ev.GraphCaptured: f"{_SEEN}: the start of the worker",
}


def explain(view: StepView) -> list[Reason]:
    """Every decision of a step, and those since the step before, in the order in which they were made."""
    told, reasons = Telling(view), list[Reason]()
    phase: Phase = "before"
    for event in (*view.preceding, *view.events):
        phase = _phase_after(event, phase)
        teller = TELLERS.get(type(event))
        said = teller(told, event) if teller else None
        told.follow(event)
        if said is not None:
            reasons.append(_reason(event, said, phase))
    return reasons


def _reason(event: ev.Event, said: Said, phase: Phase) -> Reason:
    tag = ev.tag_of(event)
    return Reason(event.seq, tag, said.request, said.sentence, RULES[said.rule], said.detail, phase)


def _phase_after(event: ev.Event, phase: Phase) -> Phase:
    match event:
        case ev.ScheduleCalled():
            return "planned"
        case ev.StepOutput() | ev.ExecutorFailed():
            return "output"
    return phase
