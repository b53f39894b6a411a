"""EngineCore: the door of the control plane, and its whole surface.

A deterministic state machine: the same calls in the same order give the same answers and the same events. It waits
for nothing and asks nobody the time; the loops that drive it live in `engine.loop`.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.automaton import Automaton
from engine.config import EngineConfig, KVCacheConfig, SchedulerConfig
from engine.core.kv_cache.stats import PrefixCacheStats
from engine.core.messages import (
    EngineCoreOutputs,
    EngineCoreRequest,
    ForwardFailure,
    GrammarBitmask,
    ModelRunnerOutput,
    RequestStatus,
    SchedulerOutput,
)
from engine.core.request import Request
from engine.core.scheduler.coasting import Coasting
from engine.core.scheduler.scheduler import Scheduler
from engine.core.scheduler.update import news_of
from engine.core.seams import Foresight, GrammarBackend, KVConnector
from engine.core.spec_bookkeeping import tell_speculation
from engine.core.structured_output import StructuredOutputManager
from engine.errors import ConfigError, RequestError
from engine.trace.events import (
    CacheResetAsked,
    ConfigChanged,
    ExecutorFailed,
    GrammarFailed,
    GrammarReady,
    KVTransferDone,
    RequestAborted,
    RequestAdded,
    ScheduleCalled,
    StepOutput,
)
from engine.trace.recorder import EventSink


class EngineCore:
    """Takes requests in, plans steps, takes their outputs in.

    Args:
        config: the engine's configuration.
        kv_cache: the KV cache as the worker built it.
        max_model_len: longest prompt + output, in tokens.
        trace: where events go; None costs nothing.
        grammar_backend: what compiles and walks the grammars of guided requests; None: they are refused.
        kv_connector: what moves KV between engines; None: every token is computed here.

    Raises:
        ConfigError: the pool is too small for one request of `max_model_len` tokens, or a connector would have to
            move KV of sliding windows.
    """

    def __init__(
        self,
        config: EngineConfig,
        kv_cache: KVCacheConfig,
        max_model_len: int,
        trace: EventSink | None = None,
        grammar_backend: GrammarBackend | None = None,
        kv_connector: KVConnector | None = None,
    ) -> None:
        kv_cache.require_room_for(max_model_len, config)
        if kv_connector is not None and any(group.sliding_window is not None for group in kv_cache.groups):
            raise ConfigError("A KV connector moves the KV of full attention only; this model has sliding windows.")
        self.max_model_len = max_model_len
        self.structured_output_manager = StructuredOutputManager(grammar_backend, trace)
        self.scheduler = Scheduler(config, kv_cache, max_model_len, self.structured_output_manager, kv_connector, trace)
        self.requests: dict[str, Request] = {}
        """Live requests by their id."""
        self._num_added = 0
        self._speculative = config.speculative
        self._has_kv_connector = kv_connector is not None
        self._trace = trace

    def add(self, request: EngineCoreRequest) -> int:
        """Let a request in; it waits from now on. Returns its serial.

        Raises:
            RequestError: the id belongs to a live request, the prompt is empty or too long, or the request is guided
                and there is no grammar backend.
        """
        if request.request_id in self.requests:
            raise RequestError(f"The request id {request.request_id!r} belongs to a request that is still running.")
        if not 0 < len(request.prompt_token_ids) < self.max_model_len:
            raise RequestError(
                f"A prompt must have between 1 and {self.max_model_len - 1} tokens, "
                f"got {len(request.prompt_token_ids)}."
            )
        if request.grammar is not None:
            self.structured_output_manager.require_backend()
        serial = self._num_added
        if self._trace is not None:
            self._trace.emit(
                RequestAdded(
                    request=serial,
                    request_id=request.request_id,
                    prompt_token_ids=request.prompt_token_ids,
                    sampling_params=request.sampling_params,
                    eos_token_ids=request.eos_token_ids,
                    priority=request.priority,
                    cache_salt=request.cache_salt,
                    lora_request=request.lora_request,
                    mm_features=request.mm_features,
                    grammar=request.grammar,
                    parent_id=request.parent_id,
                    child_index=request.child_index,
                    has_prompt_embeds=request.prompt_embeds is not None,
                )
            )
        self._num_added += 1
        live = self.requests[request.request_id] = Request(serial, request, self.max_model_len)
        self.scheduler.add(live)
        return serial

    def abort(self, request_ids: Iterable[str], cause: str = "client") -> list[str]:
        """Take requests out before their end; ids that are not alive are ignored. Returns those that were."""
        coasting = self.scheduler.coasting
        if coasting is not None and any(self.scheduler.in_flight):
            raise ValueError("No request can be aborted while a foreseen step is in flight.")
        aborted = [self.requests.pop(request_id) for request_id in request_ids if request_id in self.requests]
        if aborted and self._trace is not None:
            self._trace.emit(RequestAborted(requests=[request.serial for request in aborted], cause=cause))
        for request in aborted:
            if coasting is not None:
                coasting.wake(request, self.scheduler.step)
            self.scheduler.finish(request, RequestStatus.FINISHED_ABORTED, f"aborted: {cause}")
        return [request.request_id for request in aborted]

    def grammar_ready(self, request_id: str, automaton: Automaton | None = None) -> None:
        """The grammar of a request is compiled: it may be admitted from now on. Ignored if it has ended.

        Args:
            request_id: the request.
            automaton: what the trace draws of its grammar; None if it cannot be drawn, or has been for another request.
        """
        request = self.requests.get(request_id)
        if request is not None and request.grammar is not None:
            if self._trace is not None:
                self._trace.emit(GrammarReady(request=request.serial, automaton=automaton))
            self.structured_output_manager.mark_ready(request)

    def grammar_failed(self, request_id: str, why: str) -> EngineCoreOutputs:
        """The grammar of a request cannot be compiled: that request ends with an error, no other notices."""
        request = self.requests.pop(request_id, None)
        if request is None:
            return EngineCoreOutputs(step=self.scheduler.step, outputs=[])
        if self._trace is not None:
            self._trace.emit(GrammarFailed(request=request.serial, why=why))
        self.scheduler.finish(request, RequestStatus.FINISHED_ERROR, "its grammar does not compile")
        return EngineCoreOutputs(step=self.scheduler.step, outputs=[news_of(request, [], error=why)])

    def kv_done(self, finished_receiving: Iterable[int] = (), finished_sending: Iterable[int] = ()) -> None:
        """The connector is done with the KV of these serials, whether their requests are still alive or not."""
        done = KVTransferDone(finished_receiving=list(finished_receiving), finished_sending=list(finished_sending))
        if self._trace is not None:
            self._trace.emit(done)
        self.scheduler.kv_transfer_manager.kv_done(done.finished_receiving, done.finished_sending)

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix. Refused, with False, while any request holds blocks."""
        if self._trace is not None:
            self._trace.emit(CacheResetAsked())
        return self.scheduler.kv_cache_manager.reset_prefix_cache()

    def reconfigure(self, limits: SchedulerConfig) -> None:
        """Change what a step may hold, from the next one on. Nobody who runs already is sent away.

        Raises:
            ConfigError: it names another policy, or another way to plan: these are chosen when a core is made.
        """
        in_force = self.scheduler.config
        for name in ("policy", "async_scheduling"):
            if getattr(limits, name) != getattr(in_force, name):
                raise ConfigError(f"{name} is chosen at the start: of a core that runs, only its limits change.")
        if self._trace is not None:
            self._trace.emit(ConfigChanged(scheduler=limits))
        self.scheduler.config = limits

    def foresee(self, foresight: Foresight) -> Coasting:
        """From now on, leave decodes alone whose coming steps are settled; the decisions remain the same.

        A step names only the other rows then, beside `SchedulerOutput.coasting`, and only they have news. It must not
        fail, and has to be taken in before the next one is planned or a request is aborted.

        Raises:
            ConfigError: with drafts, several steps in flight, or KV from elsewhere, what a step brings is not settled.
            ValueError: they are foreseen already.
        """
        scheduler = self.scheduler
        if scheduler.coasting is not None:
            raise ValueError("The steps of this core are foreseen already.")
        if self._speculative is not None or scheduler.config.async_scheduling or self._has_kv_connector:
            raise ConfigError("Steps can be foreseen only without speculation, async_scheduling and a KV connector.")
        scheduler.coasting = Coasting(foresight, scheduler.kv_cache_manager, self.max_model_len)
        return scheduler.coasting

    def make_prefix_cache_stats(self) -> PrefixCacheStats:
        """How much of what was asked of the prefix cache it had."""
        return self.scheduler.kv_cache_manager.caching_metrics.stats()

    def schedule(self) -> SchedulerOutput:
        """Plan the next step. A plan without rows needs no forward pass and gets no `update`."""
        if self._trace is not None:
            self._trace.step = self.scheduler.step + 1
            self._trace.emit(ScheduleCalled())
        return self.scheduler.schedule()

    def grammar_bitmask(self, step: int) -> GrammarBitmask | None:
        """Which tokens the guided rows of a step in flight may sample; None if no row is guided.

        Asked between the forward pass and the sampling, not while the step is planned: see `seams.Executor`.
        """
        return self.structured_output_manager.grammar_bitmask(self.scheduler.in_flight.plan_of(step))

    def update(self, step: int, output: ModelRunnerOutput | ForwardFailure) -> EngineCoreOutputs:
        """Take in what a step brought back.

        Raises:
            ValueError: the step is not in flight, or the output is not of its rows.
        """
        self.scheduler.in_flight.require(step, output)
        if self._trace is not None:
            self._trace.step = step
            self._trace.emit(_answer_event(output))
            if isinstance(output, ModelRunnerOutput) and self._speculative is not None:
                tell_speculation(self._trace, self._speculative.method, self.scheduler.in_flight.plan_of(step), output)
        outputs = self.scheduler.update(output)
        for news in outputs:
            if news.finish_reason is not None:
                del self.requests[news.request_id]
        return EngineCoreOutputs(step=step, outputs=outputs)

    def has_unfinished_requests(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.requests)


def _answer_event(output: ModelRunnerOutput | ForwardFailure) -> StepOutput | ExecutorFailed:
    if isinstance(output, ForwardFailure):
        return ExecutorFailed(why=output.why)
    return StepOutput(
        requests=output.serials,
        sampled_token_ids=output.sampled_token_ids,
        draft_token_ids=output.draft_token_ids,
        logprobs=output.logprobs,
        prompt_logprobs=output.prompt_logprobs,
        errors=output.errors,
    )
