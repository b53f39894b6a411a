"""`State`: everything the engine core knew at one moment of a trace, folded from the events before it.

The fold decides nothing. Each event states facts and `apply` writes them down; what cannot be true of the state it
meets raises `StateError`. So a state is as right as the trace, and whoever doubts the trace asks `sim.invariants`.

::

    state = State.initial(trace.header)
    for event in trace.events:
        state.apply(event)

Inside a step the order is: `step.started`, one `schedule.request` per row with the `kv.*` events that made room for
it, `step.scheduled` (tokens now count as computed), `step.output`, one `update.request` per row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.config import Policy, SchedulerConfig
from engine.errors import TraceError
from engine.trace import events as ev
from sim.fold import FOLDS
from sim.plan import PlanState
from sim.pool import BlockState, Origin, PoolState
from sim.request_state import RequestState

__all__ = ["BlockState", "PlanState", "PoolState", "RequestState", "State", "StateError"]


class StateError(TraceError):
    """An event states what cannot be: its message names the event by its seq."""

    def __init__(self, event: ev.Event, why: str) -> None:
        self.event = event
        self.why = why
        super().__init__(f"event {event.seq}, {ev.tag_of(event)}, cannot be: {why}.")


@dataclass(slots=True)
class State:
    """A moment of a trace."""

    scheduler: SchedulerConfig
    """The limits in force."""
    block_size: int
    num_groups: int
    pool: PoolState
    requests: dict[int, RequestState] = field(default_factory=dict)
    """Every request seen so far by serial, the finished ones too."""
    running: list[int] = field(default_factory=list)
    """Serials in the order in which a step looks at them."""
    waiting: list[int] = field(default_factory=list)
    """Serials in serving order: arrival with the preempted first (fcfs), or (priority, serial)."""
    plan: PlanState | None = None
    """The plan of the newest step."""
    in_flight: dict[int, PlanState] = field(default_factory=dict)
    """Plans by step whose forward pass has not been answered yet."""
    proposed: dict[int, list[int]] = field(default_factory=dict)
    """Draft tokens by serial that came back with the newest output and have not been taken in yet."""
    pieces: dict[int, bytes] = field(default_factory=dict)
    """Bytes per token id. Shared between copies: they are facts about the tokenizer, not about a moment."""
    step: int = 0
    seq: int = -1
    """The last event folded in."""

    @classmethod
    def initial(cls, header: ev.Header) -> State:
        """The core before its first event: no request, every block free."""
        return cls(
            scheduler=header.config.scheduler,
            block_size=header.kv_cache.block_size,
            num_groups=len(header.kv_cache.groups),
            pool=PoolState.fresh(header.kv_cache.num_gpu_blocks),
        )

    def copy(self) -> State:
        """A state of its own; costs O(requests + blocks). Requests that have ended are shared, see `sim.fold`."""
        return State(
            scheduler=self.scheduler,
            block_size=self.block_size,
            num_groups=self.num_groups,
            pool=self.pool.copy(),
            requests={serial: r if r.ended else r.copy() for serial, r in self.requests.items()},
            running=self.running.copy(),
            waiting=self.waiting.copy(),
            plan=self.plan and self.plan.copy(),
            in_flight=self.in_flight.copy(),
            proposed=self.proposed.copy(),
            pieces=self.pieces,
            step=self.step,
            seq=self.seq,
        )

    def apply(self, event: ev.Event) -> None:
        """Fold one event in.

        Raises:
            StateError: the event cannot follow the ones before it; the state is not to be used any more.
        """
        fold = FOLDS.get(type(event))
        try:
            if fold is not None:
                fold(self, event)
        except ValueError as error:
            raise StateError(event, str(error)) from error
        self.step = event.step
        self.seq = event.seq

    def fold(self, events: Iterable[ev.Event]) -> State:
        """Fold events in, in order, and return this state."""
        for event in events:
            self.apply(event)
        return self

    @property
    def policy(self) -> Policy:
        """Who is served first."""
        return self.scheduler.policy

    def request(self, serial: int) -> RequestState:
        """The request of a serial.

        Raises:
            ValueError: no request of that serial has been added.
        """
        request = self.requests.get(serial)
        if request is None:
            raise ValueError(f"no request r{serial} has been added")
        return request

    @property
    def holders(self) -> list[RequestState]:
        """Requests that hold blocks: the running ones in order, waiting ones whose KV comes from elsewhere, and ended
        ones on whose blocks a connector still works."""
        living = (self.requests[serial] for serial in (*self.running, *self.waiting))
        ended = (request for request in self.requests.values() if request.ended)
        return [request for request in (*living, *ended) if request.holds_blocks]

    @property
    def held_blocks(self) -> set[int]:
        """Blocks of requests that have ended: in use, because a connector still works on them."""
        ended = (request for request in self.holders if request.ended)
        return {block_id for request in ended for table in request.block_ids for block_id in table}

    def piece_text(self, token_id: int) -> str:
        """The text of a token, `�` for bytes that are part of a character, its number if it was never shown."""
        piece = self.pieces.get(token_id)
        return f"#{token_id}" if piece is None else piece.decode("utf-8", errors="replace")

    def block_token_ids(self, block_id: int) -> list[int]:
        """Token ids whose KV a block holds: by its cached content, else by the table of who holds it."""
        origin = self.pool.origins[block_id] or self._held_at(block_id)
        if origin is None:
            return []
        request = self.requests[origin.request]
        first = origin.place * self.block_size
        end = first + self.block_size
        if self.pool.hashes[block_id] is None:
            end = min(end, request.num_computed_tokens)
        return request.token_ids[first:end]

    def _held_at(self, block_id: int) -> Origin | None:
        for serial in self.pool.owners[block_id]:
            for group, table in enumerate(self.requests[serial].block_ids):
                if block_id in table:
                    return Origin(serial, group, table.index(block_id))
        return None
