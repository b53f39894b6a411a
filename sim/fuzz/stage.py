"""The stage: plays one episode against a real `EngineCore`, and judges how it ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from engine.core.engine_core import EngineCore
from engine.core.messages import EngineCoreOutput, ForwardFailure, SchedulerOutput
from engine.errors import OrreryError, RequestError
from engine.trace.file import Trace
from sim.fuzz.bound import Remaining, steps_to_finish
from sim.fuzz.client import Client
from sim.fuzz.collaborators import ToyGrammarBackend, ToyKVConnector
from sim.fuzz.episode import Arrival, Episode, Moment
from sim.fuzz.failure import Broken, broken
from sim.fuzz.situations import Situations
from sim.fuzz.toy_model import ToyWorker
from sim.fuzz.watcher import Watcher
from sim.invariants import Violation
from sim.replay import replay

#: What the core may raise by mistake; a refusal that is meant is caught where it is expected.
_CRASHES = (AssertionError, AttributeError, LookupError, OrreryError, TypeError, ValueError)

#: Steps of an episode, however often its collaborators make somebody wait: usual are a few hundred.
_PATIENCE = 20_000


class Outcome(NamedTuple):
    """How an episode went."""

    num_steps: int
    violation: Violation | None
    trace: Trace | None
    """Its events, if they were recorded."""


def play(episode: Episode, situations: Situations, *, record: bool = False) -> Outcome:
    """Play an episode; recorded, it is also replayed."""
    stage = Stage(episode, situations, record=record)
    violation: Violation | None = None
    try:
        stage.run()
    except Broken as failure:
        violation = failure.violation
    except _CRASHES as crash:
        violation = Violation("no crash", 0, 0, f"{type(crash).__name__}: {crash}")
    trace = stage.watcher.trace() if record else None
    if trace is not None and violation is None:
        violation = _divergence(trace)
    return Outcome(stage.num_steps, violation, trace)


def _divergence(trace: Trace) -> Violation | None:
    divergence = replay(trace).divergence
    if divergence is None:
        return None
    return Violation("replay regenerates every decision", 0, divergence.step, divergence.why)


class Stage:
    """A core, its collaborators, and the clients of an episode."""

    def __init__(self, episode: Episode, situations: Situations, *, record: bool) -> None:
        header = episode.setting.header()
        self.tick = 0
        self.num_steps = 0
        self.watcher = Watcher(header, situations, record=record)
        self._setting = episode.setting
        self._grammars = ToyGrammarBackend()
        self._worker = ToyWorker(episode.setting, header.kv_cache.num_gpu_blocks)
        self._connector = ToyKVConnector(self._worker, episode.setting, self._later, self._kv_done)
        self._core = EngineCore(
            header.config,
            header.kv_cache,
            header.model.max_model_len,
            self.watcher,
            self._grammars,
            self._connector if episode.setting.kv_connector else None,
        )
        self._clients: dict[int, Client] = {}
        self._in_flight: deque[SchedulerOutput] = deque()
        self._failures = frozenset(episode.failures)
        self._something_failed = False
        self._due: dict[tuple[int, Moment], list[Callable[[], None]]] = {}
        for arrival in episode.arrivals:
            self._at(arrival.tick, arrival.moment, partial(self._arrive, arrival))
        for tick, moment in episode.resets:
            self._at(tick, moment, self._reset)

    def run(self) -> None:
        """Tick until nothing is left to do, then look at what is left behind.

        Raises:
            Broken: an invariant does not hold.
        """
        steps_left: int | None = None
        while self._due or self._in_flight or self._core.has_unfinished_requests():
            if not self._due:
                if steps_left is None:
                    steps_left = self._steps_to_finish()
                if steps_left == 0 and self._core.has_unfinished_requests():
                    raise broken("everything ends", f"{list(self._core.requests)} live beyond the bound")
                steps_left = max(0, steps_left - 1)
            if self.num_steps == _PATIENCE:
                raise broken("everything ends", f"{list(self._core.requests)} still live after {_PATIENCE} steps")
            self._step()
        self._judge()

    # --- a tick ---------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        self.num_steps += 1
        self._happen("before")
        plan = self._core.schedule()
        if plan.rows:
            self._in_flight.append(plan)
        self._happen("in flight")
        if self._in_flight and (len(self._in_flight) == self._setting.steps_in_flight or not plan.rows):
            self._land(self._in_flight.popleft())
        self.tick += 1
        if self._due and not self._in_flight and not self._core.has_unfinished_requests():
            self.tick = max(self.tick, min(tick for tick, _ in self._due))  # nobody is there to notice the time

    def _land(self, plan: SchedulerOutput) -> None:
        """Execute the oldest step in flight, and hand its output to the core."""
        self._core.grammar_bitmask(plan.step)
        if plan.step in self._failures:
            self._worker.fail(plan)
            self._something_failed = True
            output = self._core.update(plan.step, ForwardFailure(step=plan.step, why="out of memory"))
        else:
            output = self._core.update(plan.step, self._worker.execute(plan))
        self._tell(output.outputs)
        self._something_failed = False

    def _tell(self, outputs: Iterable[EngineCoreOutput]) -> None:
        for news in outputs:
            self._clients[news.serial].hear(news, self._something_failed)

    # --- what befalls the core --------------------------------------------------------------------------------------

    def _at(self, tick: int, moment: Moment, action: Callable[[], None]) -> None:
        self._due.setdefault((tick, moment), []).append(action)

    def _later(self, ticks: int, action: Callable[[], None]) -> None:
        self._at(self.tick + 1 + ticks, "before", action)

    def _happen(self, moment: Moment) -> None:
        for action in self._due.pop((self.tick, moment), ()):
            action()

    def _arrive(self, arrival: Arrival) -> None:
        if arrival.takes_over:
            self._abort(arrival.request_id)
        if arrival.request_id in self._core.requests:
            return self._refused(arrival)
        serial = self._core.add(arrival.request())
        self._connector.meet(serial, arrival)
        self._clients[serial] = Client(serial, arrival, self._setting)
        if arrival.grammar_after is not None:
            self._later(arrival.grammar_after, lambda: self._answer_grammar(serial))
        if arrival.aborted_after is not None:
            self._at(self.tick + 1 + arrival.aborted_after, arrival.aborted_at, lambda: self._give_up(serial))
        return None

    def _refused(self, arrival: Arrival) -> None:
        try:
            self._core.add(arrival.request())
        except RequestError:
            return
        raise broken("one living request per id", f"a second {arrival.request_id!r} was let in")

    def _give_up(self, serial: int) -> None:
        if not self._clients[serial].ended:
            self._abort(self._clients[serial].arrival.request_id)

    def _abort(self, request_id: str) -> None:
        living = self._core.requests.get(request_id)
        aborted = self._core.abort([request_id])
        if living is not None:
            self._clients[living.serial].gives_up()
        if aborted != [request_id] * (living is not None):
            raise broken("aborted is who lived", f"{aborted} was aborted for {request_id!r}")

    def _answer_grammar(self, serial: int) -> None:
        client = self._clients[serial]
        if client.ended:
            return  # the loop knows requests by their id, which may be another's by now
        if client.arrival.grammar_fails:
            self._something_failed = True
            self._tell(self._core.grammar_failed(client.arrival.request_id, "unbalanced bracket").outputs)
            self._something_failed = False
        else:
            self._core.grammar_ready(client.arrival.request_id)

    def _kv_done(self, received: list[int], sent: list[int]) -> None:
        self._core.kv_done(received, sent)

    def _reset(self) -> None:
        pool = self._core.scheduler.kv_cache_manager.block_pool
        may = pool.num_blocks_in_use == 0
        if self._core.reset_prefix_cache() != may:
            raise broken("reset only while nobody holds blocks", f"{pool.num_blocks_in_use} blocks are in use")

    # --- the end ----------------------------------------------------------------------------------------------------

    def _steps_to_finish(self) -> int:
        living = [
            Remaining(request.num_tokens, request.max_tokens - request.num_output_tokens)
            for request in self._core.requests.values()
        ]
        return steps_to_finish(self._setting, living)

    def _judge(self) -> None:
        """Nothing may be left behind."""
        self.watcher.audit()
        scheduler, manager = self._core.scheduler, self._core.scheduler.kv_cache_manager
        pool, seen = manager.block_pool, self.watcher.checker.state.pool
        residue: dict[str, object] = {
            "clients without an end": [serial for serial, client in self._clients.items() if not client.ended],
            "running": scheduler.running,
            "waiting": list(scheduler.waiting),
            "blocks in use": pool.num_blocks_in_use,
            "reference counts": [block for block in pool.blocks if block.ref_count],
            "req_to_block_hashes": manager.req_to_block_hashes,
            "req_to_blocks": [group.req_to_blocks for group in manager.coordinator.groups if group.req_to_blocks],
            "num_cached_blocks": [g.num_cached_blocks for g in manager.coordinator.groups if g.num_cached_blocks],
            "in flight": list(scheduler.in_flight),
            "kept by the gates": _kept(scheduler.kv_transfer_manager) + _kept(scheduler.structured_output_manager),
            "grammars": self._grammars.living,
            "loads": self._connector.receiving,
            "blocks sent": self._connector.sending,
        }
        for name, left in residue.items():
            if left:
                raise broken("nothing is left behind", f"{name}: {left}")
        if [block.block_id for block in pool.free_block_queue] != list(seen.free_block_queue):
            raise broken("the pool is as its events say", "free_block_queue is in another order")
        if [block.block_hash and str(block.block_hash) for block in pool.blocks] != seen.hashes:
            raise broken("the pool is as its events say", "blocks bear other hashes")
        found: dict[str, set[int]] = {}
        for group in range(len(pool.cached_block_hash_to_block)):
            for block_hash, blocks in pool.cached_blocks(group).items():
                found.setdefault(str(block_hash), set()).update(block.block_id for block in blocks)
        if found != {block_hash: set(twins) for block_hash, twins in seen.cached_block_hash_to_block.items()}:
            raise broken("the pool is as its events say", "cached_block_hash_to_block holds other blocks")


def _kept(manager: object) -> list[str]:
    """The fields in which a manager still keeps something."""
    return [name for name, value in vars(manager).items() if isinstance(value, (dict, set)) and value]
