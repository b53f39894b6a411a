"""KVTransferManager: requests whose KV, or a part of it, another engine has computed or will want.

A connector knows which KV lies elsewhere. What it loads within the step counts as computed at once; what it loads in
the background keeps its request in WAITING_FOR_REMOTE_KVS, its blocks already allocated, until `EngineCore.kv_done`
reports it. Blocks that a connector still reads or writes stay out of the pool until it is done, even if their request
has ended; and it begins to write only when every step that may still write those blocks has come back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from engine.core.kv_cache.manager import KVCacheManager
from engine.core.request import Request
from engine.core.scheduler.plan import StepPlan, StepsInFlight
from engine.core.seams import KVConnector
from engine.trace.events import KVHeld, KVTransferFinished, KVTransferMatched
from engine.trace.recorder import EventSink


class RemoteMatch(NamedTuple):
    """What a connector has of a request beyond its local prefix."""

    num_tokens: int
    load_async: bool
    """Loaded in the background: the request waits for it."""


NO_MATCH = RemoteMatch(0, False)


@dataclass(slots=True)
class _Held:
    """The blocks of a request that has ended."""

    request: Request
    why: str
    """Why it ended."""
    sending: bool
    receiving: bool


@dataclass(slots=True)
class _Fenced:
    """A load in the background that has not begun: steps in flight may still write its blocks for their last owner."""

    request: Request
    num_tokens: int
    steps: set[int]


class KVTransferManager:
    """Stands between the scheduler and the connector."""

    def __init__(
        self,
        connector: KVConnector | None,
        kv_cache_manager: KVCacheManager,
        in_flight: StepsInFlight,
        trace: EventSink | None,
    ) -> None:
        self._connector = connector
        self._kv_cache_manager = kv_cache_manager
        self._in_flight = in_flight
        self._trace = trace
        self._fenced: dict[int, _Fenced] = {}
        self._loaded: set[int] = set()
        """Living requests whose KV was loaded in the background."""
        self._expected: dict[int, int] = {}
        """By serial, the tokens a waiting request will have once its KV is here."""
        self._received: set[int] = set()
        self._held: dict[int, _Held] = {}
        """By serial, blocks of ended requests that are still read or written."""

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> RemoteMatch:
        """Ask the connector for KV beyond the local prefix. As there, one token is left to compute.

        Once for a load in the background: blocks that wait with their request stand in the way of those that run, and
        a request that came to wait with new ones again and again could keep everyone from ever finishing.
        """
        if self._connector is None or request.serial in self._loaded:
            return NO_MATCH
        num_tokens, load_async = self._connector.get_num_new_matched_tokens(
            request.serial, request.token_ids, num_computed_tokens
        )
        if self._trace is not None:
            self._trace.emit(KVTransferMatched(request=request.serial, num_tokens=num_tokens, load_async=load_async))
        num_tokens = min(num_tokens, request.num_tokens - 1 - num_computed_tokens)
        return RemoteMatch(num_tokens, load_async) if num_tokens > 0 else NO_MATCH

    def update_state_after_alloc(self, request: Request, num_computed_tokens: int, match: RemoteMatch) -> None:
        """Tell the connector into which blocks the matched tokens go."""
        if self._connector is None or not match.num_tokens:
            return
        if not match.load_async:
            self._tell_connector(request, match.num_tokens)
            return
        self._expected[request.serial] = num_computed_tokens + match.num_tokens
        self._loaded.add(request.serial)
        load = _Fenced(request, match.num_tokens, {plan.step for plan in self._in_flight})
        if load.steps:
            self._fenced[request.serial] = load
        else:
            self._tell_connector(request, match.num_tokens)

    def step_landed(self, step: int) -> None:
        """A step has come back: loads that had to wait for it may begin."""
        for serial, load in list(self._fenced.items()):
            load.steps.discard(step)
            if not load.steps:
                del self._fenced[serial]
                self._tell_connector(load.request, load.num_tokens)

    def _tell_connector(self, request: Request, num_tokens: int) -> None:
        assert self._connector is not None
        block_ids = self._kv_cache_manager.block_ids(request)
        self._connector.update_state_after_alloc(request.serial, block_ids, num_tokens)

    def build_connector_meta(self, plan: StepPlan) -> Any:
        """What the worker's side of the connector must do in a step; None without a connector."""
        return None if self._connector is None else self._connector.build_connector_meta(list(plan.rows))

    def kv_done(self, finished_receiving: list[int], finished_sending: list[int]) -> None:
        """The connector is done with these requests: whoever waits may go on, blocks held for it are free."""
        for held in (self._held[serial] for serial in finished_receiving if serial in self._held):
            held.receiving = False
        for held in (self._held[serial] for serial in finished_sending if serial in self._held):
            held.sending = False
        # A connector may read and write the same blocks: they are free when it does neither.
        for serial in (*finished_receiving, *finished_sending):
            if serial in self._held and not (self._held[serial].sending or self._held[serial].receiving):
                held = self._held.pop(serial)
                self._kv_cache_manager.free(held.request, held.why)
        self._received.update(serial for serial in finished_receiving if serial in self._expected)

    def has_arrived(self, request: Request) -> bool:
        """Whether the KV that a request waits for is here."""
        return request.serial in self._received

    def take_arrived(self, request: Request) -> None:
        """Let a request go on from the KV that came: its full blocks can be found from now on."""
        self._received.discard(request.serial)
        request.num_computed_tokens = self._expected.pop(request.serial)
        self._kv_cache_manager.cache_blocks(request, request.num_computed_tokens)

    def free_when_done(self, request: Request, why: str) -> None:
        """Free the blocks of a request that has ended, now or when the connector is done with them."""
        receiving = request.serial in self._expected and request.serial not in self._received
        sending = self._is_sending(request)
        self._expected.pop(request.serial, None)
        self._received.discard(request.serial)
        self._loaded.discard(request.serial)
        if not receiving and not sending:
            self._kv_cache_manager.free(request, why)
            return
        self._held[request.serial] = _Held(request, why, sending, receiving)
        if self._trace is not None:
            self._trace.emit(KVHeld(request=request.serial, sending=sending, receiving=receiving))

    def _is_sending(self, request: Request) -> bool:
        if self._connector is None:
            return False
        block_ids = self._kv_cache_manager.block_ids(request)
        sending = self._connector.request_finished(request.serial, block_ids)
        if self._trace is not None:
            self._trace.emit(KVTransferFinished(request=request.serial, sending=sending))
        return sending
