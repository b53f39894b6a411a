"""What every sentence is made from: an event, and what the step has decided before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from engine.core.messages import RequestStatus
from engine.trace import events as ev
from sim.timeline import StepView


class Said(NamedTuple):
    """What is said of one event."""

    request: int | None
    """Serial of the request it is about; None: of all of them."""
    sentence: str
    rule: str
    """Name of one of `RULES`."""
    detail: bool = False
    """Bookkeeping that follows from another decision; may be left out where room is short."""


class Telling:
    """Goes through one step, and what came before it; remembers the rows so far, for sentences that refer to them."""

    def __init__(self, view: StepView) -> None:
        self.limits = view.before.scheduler
        self.block_size = view.header.kv_cache.block_size
        self.max_model_len = view.header.model.max_model_len
        self.vocab_size = view.header.model.vocab_size
        self.before, self.after = view.before, view.after
        self.rows: dict[int, ev.ScheduleRequest] = {}
        self.running = set(view.before.running)
        self.statuses = {serial: request.status for serial, request in view.left.requests.items()}
        """As far as the step has changed them."""
        self.held = {request.serial for request in view.left.holders if request.ended}
        """Requests that have ended and whose blocks a connector still works on."""
        self.judged: set[int] = set()
        """Requests of whose drafts it has been said what became of them."""

    def follow(self, event: ev.Event) -> None:
        """Remember what an event changes, once it has been told."""
        match event:
            case ev.ScheduleRequest():
                self.rows[event.request] = event
            case ev.SchedulePreempted():
                self.running.discard(event.victim)
                self.rows.pop(event.victim, None)
            case ev.RequestStatusChanged():
                self.statuses[event.request] = RequestStatus(event.new)
            case ev.KVHeld():
                self.held.add(event.request)
            case ev.KVFreed():
                self.held.discard(event.request)
            case ev.SpecVerdict():
                self.judged.add(event.request)

    def text(self, token_ids: list[int]) -> str:
        """What tokens say, in quotes."""
        return f"“{''.join(map(self.after.piece_text, token_ids))}”"


Teller = Callable[[Telling, Any], Said | None]
#: The sentence of every type of event that decides something.
Tellers = Mapping[type[ev.Event], Teller]
