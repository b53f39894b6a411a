"""The toy twins of the core's collaborators: what they answer is the episode's business, they only keep account."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from engine.core.messages import GrammarBitmask
from engine.sampling_params import GrammarSpec
from sim.fuzz.episode import Arrival, Setting
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

    def describe_masks(self, bitmask: GrammarBitmask) -> None:
        """There are none."""

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


class _Sending:
    """Blocks of a request that has ended, and who had written last into each of their slots."""

    def __init__(self, block_tables: tuple[list[int], ...]) -> None:
        self.block_tables = block_tables
        self.writers: dict[int, int] = {}
        """By slot; known once nothing that was in flight at the end is left."""


class ToyKVConnector:
    """A `KVConnector` whose other engine has computed the beginning of some prompts, and wants the KV of some requests.

    What it loads is right, but if its blocks are not the request's own, somebody reads nonsense: one half is written
    when it is told where to, so that a step in flight may still spoil it; the other when it says that it is done.

    Args:
        worker: whose KV it reads and writes.
        setting: whose model computes.
        later: makes a call so many ticks from now.
        done: tells the core which serials have been received, and which have been sent.
    """

    def __init__(
        self,
        worker: ToyWorker,
        setting: Setting,
        later: Callable[[int, Callable[[], None]], None],
        done: Callable[[list[int], list[int]], None],
    ) -> None:
        self.sending: dict[int, _Sending] = {}
        self.receiving: dict[int, Load] = {}
        self._worker = worker
        self._setting = setting
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
        kv = Continuation(self._setting, token_ids[: first + num_tokens]).kv
        load = Load(serial, tuple(map(list, block_ids)), first, kv[first:])
        remote_after = self._arrivals[serial].remote_after
        if remote_after is None:
            self._within_step.append(load)
        elif serial in self.receiving:
            raise broken("one load at a time", f"r{serial} is being loaded already")
        else:
            half = num_tokens // 2
            self._worker.load(load._replace(kv=load.kv[:half]))
            self.receiving[serial] = load._replace(first=first + half, kv=load.kv[half:])
            self._later(remote_after, lambda: self._received(serial))

    def build_connector_meta(self, serials: list[int]) -> list[Load]:
        """What the worker must load in this step."""
        loads, self._within_step = self._within_step, []
        return loads

    def request_finished(self, serial: int, block_ids: tuple[list[int], ...]) -> bool:
        """Whether the other engine wants the KV of the request: then its blocks must stay its own for a while."""
        sent_after = self._arrivals[serial].sent_after
        if sent_after is None or not any(block_ids):
            return False
        sending = self.sending[serial] = _Sending(tuple(map(list, block_ids)))
        self._later(2 * self._setting.steps_in_flight, lambda: self._watch(sending))
        self._later(sent_after, lambda: self._sent(serial))
        return True

    def _watch(self, sending: _Sending) -> None:
        if sending in self.sending.values():
            sending.writers = self._worker.writers(sending.block_tables)

    def _received(self, serial: int) -> None:
        self._worker.load(self.receiving.pop(serial))
        self._done([serial], [])

    def _sent(self, serial: int) -> None:
        sending = self.sending.pop(serial)
        now = self._worker.writers(sending.block_tables)
        for slot, writer in sending.writers.items():
            if now[slot] not in (writer, serial):  # its own KV may still come from elsewhere
                raise broken(
                    "what is sent stays", f"r{now[slot]} wrote into slot {slot} while r{serial} was being sent"
                )
        self._done([], [serial])
