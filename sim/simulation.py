"""`simulate`: the engine's own control plane on a virtual clock, over a workload.

::

    workload ──► arrivals ──► EngineCore ──► plan ──► ModeledExecutor ──► tokens ──► EngineCore ──► metrics, trace
                    ▲                                      │ time of the step
                    └────────────── VirtualClock ◄─────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from engine.core.engine_core import EngineCore
from engine.core.messages import EngineCoreRequest
from engine.metrics.tally import Tally
from engine.sampling_params import SamplingParams
from engine.trace.recorder import Recorder
from engine.workload.request import WorkloadRequest
from sim.clock import VirtualClock
from sim.expansion import Expansion
from sim.modeled import DraftingModel, MadeUpTokens, ModeledExecutor
from sim.observer import Observer
from sim.scenario import Scenario


@lru_cache
def _greedy(num_tokens: int) -> SamplingParams:
    """So many tokens, whatever they are; many requests of a workload ask for the same."""
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True, seed=0, temperature=0.0)


class Simulation:
    """One run.

    Args:
        scenario: what is simulated.
        drafting: how good its drafter is; None: nobody drafts.
        trace: makes the recorder of the run, which gets the clock; None: nothing is recorded.
        fast_forward: leave decodes alone whose coming steps are settled. Result and trace are the same; with drafts or
            `async_scheduling` nothing is settled, and every step looks at all of them all the same.
        finished: hears of each request that has ended, for a progress bar.
    """

    def __init__(
        self,
        scenario: Scenario,
        drafting: DraftingModel | None = None,
        trace: Callable[[VirtualClock], Recorder] | None = None,
        finished: Callable[[], object] = lambda: None,
        *,
        fast_forward: bool = True,
    ) -> None:
        self.clock = VirtualClock()
        self.num_steps = 0
        foreseen = (
            fast_forward and scenario.config.speculative is None and not scenario.config.scheduler.async_scheduling
        )
        tokens = MadeUpTokens(scenario.model.vocab_size)
        self._recorder = None if trace is None else trace(self.clock)
        self._expansion = Expansion(self._recorder, tokens) if self._recorder is not None and foreseen else None
        sink = self._expansion or self._recorder
        self._core = EngineCore(scenario.config, scenario.kv_cache, scenario.model.max_model_len, sink)
        self._executor = ModeledExecutor(scenario.cost_model, self.clock, tokens, drafting)
        if foreseen:
            coasting = self._core.foresee(tokens)
            if self._expansion is not None:
                self._expansion.coasters = lambda: coasting.serials
        usable_blocks = scenario.kv_cache.num_gpu_blocks - 1
        self._observer = Observer(usable_blocks, scenario.config.scheduler.max_num_batched_tokens)
        self._vocab_size = scenario.model.vocab_size
        self._num_added = 0
        self._finished = finished

    def run(self, workload: Iterable[WorkloadRequest]) -> Tally:
        """Serve all requests, each from its time of arrival on. Returns the run's metrics, to be summed up.

        Raises:
            RequestError: a request cannot be served: its prompt is too long.
        """
        requests = iter(workload)
        upcoming = next(requests, None)
        while upcoming is not None or self._core.has_unfinished_requests():
            if not self._core.has_unfinished_requests() and upcoming is not None:
                self.clock.advance_to(upcoming.arrival_ns)
            upcoming = self._let_in(upcoming, requests)
            self._step()
        if self._recorder is not None:
            self._recorder.close()
        return self._observer.tally

    def _let_in(self, upcoming: WorkloadRequest | None, later: Iterator[WorkloadRequest]) -> WorkloadRequest | None:
        """Add the requests whose time has come. Returns the first whose time has not."""
        while upcoming is not None and upcoming.arrival_ns <= self.clock.now_ns:
            self._add(upcoming)
            upcoming = next(later, None)
        return upcoming

    def _add(self, request: WorkloadRequest) -> None:
        prompt = request.prompt
        token_ids = prompt if isinstance(prompt, list) else prompt.token_ids(self._vocab_size)  # type: ignore[union-attr]
        added = EngineCoreRequest(
            request_id=str(self._num_added),
            prompt_token_ids=tuple(token_ids),
            sampling_params=_greedy(request.output_tokens),
            priority=request.priority,
            cache_salt=request.cache_salt,
        )
        serial = self._core.add(added)
        self._num_added += 1
        self._observer.added(serial, added.request_id, len(token_ids), request.arrival_ns)

    def _step(self) -> None:
        core, executor, pool = self._core, self._executor, self._core.scheduler.kv_cache_manager.block_pool
        started, num_waiting = self.clock.now_ns, len(core.scheduler.waiting)
        plan = core.schedule()
        self.num_steps += 1
        if plan.is_empty:  # whoever ran was preempted for itself, and nobody else got in
            return
        free_blocks = pool.num_free_blocks
        executor.execute_model(plan)
        output = executor.sample_tokens(core.grammar_bitmask(plan.step))
        outputs = core.update(plan.step, output)
        stats = core.make_prefix_cache_stats()
        ended = self._observer.stepped(
            plan,
            outputs,
            executor.last,
            started_ns=started,
            ended_ns=self.clock.now_ns,
            free_blocks=free_blocks,
            num_waiting=num_waiting,
            queried_tokens=stats.queries,
            hit_tokens=stats.hits,
        )
        for serial in ended:
            executor.finished(serial)
            self._finished()
        if self._expansion is not None:
            self._expansion.end_step()
        if self._recorder is not None:
            self._recorder.flush()
