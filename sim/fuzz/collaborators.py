"""The toy twins of the core's collaborators: what they answer is the episode's business, here they only keep account."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from engine.core.messages import GrammarBitmask
from engine.sampling_params import GrammarSpec
from sim.fuzz.episode import Arrival
from sim.fuzz.failure import broken
from sim.fuzz.toy_model import Continuation, Load, ToyWorker


class ToyGrammarBackend:
    """A `GrammarBackend` that allows every token, and knows who is guided."""

    def __init__(self) -> None:
        self.living: dict[int, list[int]] = {}
        """Tokens accepted, per guided request that has not been released."""

    def grammar_init(self, serial: int, grammar: GrammarSpec) -> None:
        """A guided request has come."""
        self.living[serial] = []

    def fill_bitmask(self, rows: list[tuple[int, tuple[int, ...]]]) -> GrammarBitmask:
        """Everything is allowed, to those who live."""
        return GrammarBitmask(serials=[serial for serial, _ in rows], words=None)

    def accept_tokens(self, serial: int, token_ids: list[int]) -> None:
        """A guided request has put out tokens."""
        self.living[serial] += token_ids

    def release(self, serial: int) -> None:
        """A guided request has ended."""
        del self.living[serial]


class _Lookup(NamedTuple):
    """What the core asked about a request last."""

    num_computed_tokens: int
    token_ids: tuple[int, ...]


class _Sending(NamedTuple):
    """Blocks of a request that has ended, and the KV of its prompt that must stay in them."""

    block_table: list[int]
    kv: dict[int, int]
    """By position."""


class ToyKVConnector:
    """A `KVConnector` whose other engine has computed the beginning of some prompts, and wants the KV of some requests.

    What it loads is right, and written when it says so: if the core gave those blocks to somebody else in the
    meantime, that one reads nonsense.

    Args:
        worker: whose KV it reads and writes.
        block_size: tokens of a block.
        later: makes a call so many ticks from now.
        done: tells the core which serials have been received, and which have been sent.
    """

    def __init__(
        self,
        worker: ToyWorker,
        block_size: int,
        later: Callable[[int, Callable[[], None]], None],
        done: Callable[[list[int], list[int]], None],
    ) -> None:
        self.sending: dict[int, _Sending] = {}
        self.receiving: dict[int, Load] = {}
        self._worker = worker
        self._block_size = block_size
        self._later = later
        self._done = done
        self._arrivals: dict[int, Arrival] = {}
        self._lookups: dict[int, _Lookup] = {}
        self._within_step: list[Load] = []

    def meet(self, serial: int, arrival: Arrival) -> None:
        """A request has come."""
        self._arrivals[serial] = arrival

    def get_num_new_matched_tokens(
        self, serial: int, token_ids: list[int], num_computed_tokens: int
    ) -> tuple[int, bool]:
        """What the other engine has of the prompt beyond the local prefix."""
        arrival = self._arrivals[serial]
        self._lookups[serial] = _Lookup(num_computed_tokens, tuple(token_ids))
        num_tokens = min(arrival.num_remote_tokens, len(arrival.prompt)) - num_computed_tokens
        return max(0, num_tokens), arrival.remote_after is not None

    def update_state_after_alloc(self, serial: int, block_ids: tuple[list[int], ...], num_tokens: int) -> None:
        """Load within the step, or begin to load."""
        first, token_ids = self._lookups[serial]
        kv = Continuation(self._block_size, token_ids[: first + num_tokens]).kv
        load = Load(list(block_ids[0]), first, kv[first:])
        remote_after = self._arrivals[serial].remote_after
        if remote_after is None:
            self._within_step.append(load)
        elif serial in self.receiving:
            raise broken("one load at a time", f"r{serial} is being loaded already")
        else:
            self.receiving[serial] = load
            self._later(remote_after, lambda: self._received(serial))

    def build_connector_meta(self, serials: list[int]) -> list[Load]:
        """What the worker must load in this step."""
        loads, self._within_step = self._within_step, []
        return loads

    def request_finished(self, serial: int, block_ids: tuple[list[int], ...]) -> bool:
        """Whether the other engine wants the KV of the prompt: then what is there of it must stay for a while."""
        sent_after = self._arrivals[serial].sent_after
        if sent_after is None or not block_ids[0]:
            return False
        right = Continuation(self._block_size, self._arrivals[serial].prompt).kv
        there = self._worker.read(block_ids[0], len(right))
        kv = {position: value for position, value in enumerate(there) if value == right[position]}
        self.sending[serial] = _Sending(list(block_ids[0]), kv)
        self._later(sent_after, lambda: self._sent(serial))
        return True

    def _received(self, serial: int) -> None:
        self._worker.load(self.receiving.pop(serial))
        self._done([serial], [])

    def _sent(self, serial: int) -> None:
        table, kv = self.sending.pop(serial)
        there = self._worker.read(table, len(self._arrivals[serial].prompt))
        for position, value in kv.items():
            if there[position] not in (value, ToyWorker.spoiled_by(serial)):
                raise broken("what is sent stays", f"position {position} of r{serial} was written while it was read")
        self._done([], [serial])
