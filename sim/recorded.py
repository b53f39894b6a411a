"""The recorded twins of the core's collaborators: they answer what a trace says the real ones answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TypeVar

from engine.core.messages import EngineCoreRequest, GrammarBitmask, ModelRunnerOutput, SchedulerOutput
from engine.core.seams import AutomatonSteps
from engine.errors import ForwardError, TraceError
from engine.sampling_params import GrammarSpec
from engine.speculation import DraftProbs, Speculation
from engine.trace.events import (
    Event,
    ExecutorFailed,
    GrammarAdvanced,
    KVTransferFinished,
    KVTransferMatched,
    RequestAdded,
    SpecProbs,
    SpecProposed,
    StepOutput,
)

_Answer = TypeVar("_Answer", KVTransferMatched, KVTransferFinished)


def recorded_request(event: RequestAdded) -> EngineCoreRequest:
    """The request that an event says was added."""
    return EngineCoreRequest(
        request_id=event.request_id,
        prompt_token_ids=event.prompt_token_ids,
        sampling_params=event.sampling_params,
        eos_token_ids=event.eos_token_ids,
        priority=event.priority,
        cache_salt=event.cache_salt,
        lora_request=event.lora_request,
        mm_features=event.mm_features,
        grammar=event.grammar,
        parent_id=event.parent_id,
        child_index=event.child_index,
        # The core asks only whether there are any.
        prompt_embeds=event.has_prompt_embeds or None,
    )


class AnswersEnd(TraceError):
    """The core asks for one answer more than the trace holds."""


class RecordedExecutor:
    """An `Executor` that runs no model: the tokens of a step come from its `step.output`.

    Args:
        events: of the recording; more can be told later, as long as a step's come before it is sampled.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._answers: dict[int, StepOutput | ExecutorFailed] = {}
        self._speculation: dict[int, Speculation] = {}
        self._in_flight: deque[int] = deque()
        for event in events:
            self.hear(event)

    def hear(self, event: Event) -> None:
        """Take note of an event, if it is part of an answer."""
        match event:
            case StepOutput() | ExecutorFailed():
                self._answers[event.step] = event
            case SpecProbs():
                self._told(event.step).probs[event.request] = DraftProbs(
                    target=event.target_probs, draft=event.draft_probs, uniform=event.uniforms, likely=event.likely
                )
            case SpecProposed():
                told = self._told(event.step)
                if event.match is not None:
                    told.matches[event.request] = event.match

    def _told(self, step: int) -> Speculation:
        return self._speculation.setdefault(step, Speculation(probs={}, matches={}))

    def execute_model(self, scheduler_output: SchedulerOutput) -> None:
        """Note that a step has been started."""
        self._in_flight.append(scheduler_output.step)

    def sample_tokens(self, grammar_bitmask: GrammarBitmask | None) -> ModelRunnerOutput:
        """The recorded answer to the step started longest ago.

        Raises:
            ForwardError: this step failed when it was recorded.
            TraceError: the trace holds no answer to it.
        """
        step = self._in_flight.popleft()
        answer = self._answers.pop(step, None)
        if answer is None:
            raise TraceError(f"The trace holds no output of step {step}.")
        if isinstance(answer, ExecutorFailed):
            raise ForwardError(answer.why)
        return ModelRunnerOutput(
            step=step,
            serials=answer.requests,
            sampled_token_ids=answer.sampled_token_ids,
            draft_token_ids=answer.draft_token_ids,
            logprobs=answer.logprobs,
            prompt_logprobs=answer.prompt_logprobs,
            speculation=self._speculation.pop(step, None),
            errors=answer.errors,
        )

    def shutdown(self) -> None:
        """Nothing to give back."""


class RecordedGrammarBackend:
    """A `GrammarBackend` that compiles nothing: when a grammar was ready, and where tokens led on it, is recorded.

    Args:
        events: of the recording; more can be told later, as long as tokens are heard of before they are accepted.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._steps: dict[int, deque[AutomatonSteps]] = {}
        for event in events:
            self.hear(event)

    def hear(self, event: Event) -> None:
        """Take note of an event, if it says where tokens led."""
        if isinstance(event, GrammarAdvanced):
            steps = AutomatonSteps(event.before, event.after, event.terminated)
            self._steps.setdefault(event.request, deque()).append(steps)

    def grammar_init(self, serial: int, grammar: GrammarSpec) -> None:
        """The trace holds the answer, as `grammar.ready` or `grammar.failed`."""

    def fill_bitmask(self, rows: list[tuple[int, tuple[int, ...]]]) -> GrammarBitmask:
        """No logits are masked here: only which rows would be."""
        return GrammarBitmask(serials=[serial for serial, _ in rows], words=None)

    def describe_masks(self, bitmask: GrammarBitmask) -> None:
        """What the trace says of them is trusted."""

    def accept_tokens(self, serial: int, token_ids: list[int]) -> AutomatonSteps | None:
        """The recorded tokens were allowed, and where they led is trusted; None where the trace does not say."""
        steps = self._steps.get(serial)
        return steps.popleft() if steps else None

    def release(self, serial: int) -> None:
        """Nothing is kept."""


class RecordedKVConnector:
    """A `KVConnector` that moves nothing: it gives the recorded answers, in the order in which they were given.

    Args:
        events: of the recording; more can be told later, as long as an answer is heard of before it is asked for.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._answers: deque[KVTransferMatched | KVTransferFinished] = deque()
        for event in events:
            self.hear(event)

    def hear(self, event: Event) -> None:
        """Take note of an event, if it is an answer."""
        if isinstance(event, (KVTransferMatched, KVTransferFinished)):
            self._answers.append(event)

    def get_num_new_matched_tokens(
        self, serial: int, token_ids: list[int], num_computed_tokens: int
    ) -> tuple[int, bool]:
        """The recorded match.

        Raises:
            TraceError: another question was asked when the run was recorded.
        """
        answer = self._next(KVTransferMatched, serial)
        return answer.num_tokens, answer.load_async

    def update_state_after_alloc(self, serial: int, block_ids: tuple[list[int], ...], num_tokens: int) -> None:
        """Nothing is moved."""

    def build_connector_meta(self, serials: list[int]) -> None:
        """Nothing is moved."""

    def request_finished(self, serial: int, block_ids: tuple[list[int], ...]) -> bool:
        """The recorded answer.

        Raises:
            TraceError: another question was asked when the run was recorded.
        """
        return self._next(KVTransferFinished, serial).sending

    def _next(self, kind: type[_Answer], serial: int) -> _Answer:
        if not self._answers:
            raise AnswersEnd(f"The trace ends before the KV connector's answer about request {serial}.")
        answer = self._answers.popleft()
        if not isinstance(answer, kind) or answer.request != serial:
            raise TraceError(f"The trace holds no answer of the KV connector about request {serial} here.")
        return answer
