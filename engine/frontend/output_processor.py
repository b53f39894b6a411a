"""`OutputProcessor`: what the core sends back becomes what the user sees.

It keeps, per live request, the text so far, and gathers the completions of one prompt. A stop string is found here and
not in the core, which knows no text; the core requests that one ended are handed back to be aborted there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from engine.core.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from engine.errors import RequestError
from engine.frontend.completion import Completion, Update
from engine.frontend.tokenizer import Tokenizer
from engine.logprobs import TokenLogprobs
from engine.metrics import RequestMetrics
from engine.outputs import RequestOutput
from engine.sampling_params import RequestOutputKind
from engine.trace.events import OutputText
from engine.trace.recorder import Recorder


class ProcessedOutputs(NamedTuple):
    """The news for users, and the ids of core requests that the core must be told to abort."""

    request_outputs: list[RequestOutput]
    stopped: list[str]


class OutputProcessor:
    """Turns `EngineCoreOutputs` into `RequestOutput`s.

    Args:
        tokenizer: the model's tokenizer.
        trace: where events go; None costs nothing.
    """

    def __init__(self, tokenizer: Tokenizer, trace: Recorder | None = None) -> None:
        self._tokenizer = tokenizer
        self._trace = trace
        # By serial, since an id may be used again while an output of its first bearer is still on its way.
        self._owners: dict[int, _UserRequest] = {}
        self._requests: dict[str, _UserRequest] = {}

    def require_free(self, request_ids: Iterable[str]) -> None:
        """Check that ids can be given to new requests.

        Raises:
            RequestError: an id belongs to a live request, or occurs twice.
        """
        taken = {*self._requests}.union(*(request.core_ids() for request in self._requests.values()))
        for request_id in request_ids:
            if request_id in taken:
                raise RequestError(f"The request id {request_id!r} belongs to a request that is not finished yet.")
            taken.add(request_id)

    def add_request(
        self, serial: int, request: EngineCoreRequest, prompt: str | None, metrics: RequestMetrics | None = None
    ) -> None:
        """Expect the output of a request that the core has given a serial, and whose metrics may be collected; of
        several completions of a prompt each is added."""
        name = request.parent_id or request.request_id
        if request.child_index == 0:
            self._requests[name] = _UserRequest(name, request, prompt, metrics)
            if self._trace is not None and request.prompt_embeds is None:
                self._trace.show_tokens(request.prompt_token_ids)
        owner = self._owners[serial] = self._requests[name]
        owner.completions[serial] = Completion(request, self._tokenizer)

    def abort_requests(self, request_ids: Iterable[str]) -> list[str]:
        """Expect no more of these requests; ids that are not alive are ignored. Returns the ids that the core knows
        them by."""
        core_ids: list[str] = []
        for request_id in request_ids:
            request = self._requests.pop(request_id, None)
            if request is not None:
                core_ids += request.core_ids()
                for serial in request.completions:
                    self._owners.pop(serial, None)
        return core_ids

    def process_outputs(self, outputs: EngineCoreOutputs) -> ProcessedOutputs:
        """Take in the news of one step. News of a request that was aborted meanwhile is dropped."""
        moved: dict[str, _UserRequest] = {}
        stopped: list[str] = []
        for news in outputs.outputs:
            owner = self._owners.get(news.serial)
            if owner is None:
                continue
            moved[owner.request_id] = owner
            if self._trace is not None:
                self._trace.show_tokens(_named_token_ids(news))
            update = owner.take(news)
            self._record_text(news.serial, update)
            if update.finish_reason is not None:
                del self._owners[news.serial]
            if update.stop is not None and news.finish_reason is None:
                stopped.append(owner.completions[news.serial].request_id)
        request_outputs = [output for request in moved.values() if (output := request.output()) is not None]
        for request in moved.values():
            if request.finished:
                del self._requests[request.request_id]
        return ProcessedOutputs(request_outputs, stopped)

    def _record_text(self, serial: int, update: Update) -> None:
        finished = update.finish_reason is not None
        if self._trace is not None and (update.delta or finished):
            self._trace.emit(OutputText(request=serial, delta=update.delta, stop=update.stop, finished=finished))


def _named_token_ids(news: EngineCoreOutput) -> Iterator[int]:
    """The new tokens, and those whose log probabilities are told."""
    yield from news.new_token_ids
    for place in chain(news.new_logprobs or (), news.prompt_logprobs or ()):
        yield from place.token_ids


class _UserRequest:
    """A prompt and all of its completions."""

    def __init__(
        self, request_id: str, request: EngineCoreRequest, prompt: str | None, metrics: RequestMetrics | None
    ) -> None:
        params = request.sampling_params
        self.request_id = request_id
        self.completions: dict[int, Completion] = {}
        """By serial, in the order of their index."""
        self._num_completions = params.n
        self._prompt = prompt
        self._metrics = metrics
        self._prompt_token_ids = list(request.prompt_token_ids) if request.prompt_embeds is None else []
        self._prompt_logprobs: list[TokenLogprobs | None] | None = None
        self._kind = params.output_kind
        self._num_cached_tokens = 0
        self._error: str | None = None
        self._num_finished = 0
        self._moved: list[Completion] = []

    @property
    def finished(self) -> bool:
        """Whether every completion has come to its end."""
        return self._num_finished == self._num_completions

    def core_ids(self) -> list[str]:
        """What the core calls its completions, as far as they go on."""
        alive = (c for c in self.completions.values() if c.update is None or c.update.finish_reason is None)
        return [completion.request_id for completion in alive]

    def take(self, news: EngineCoreOutput) -> Update:
        """Add what the core brought to one of the completions."""
        completion = self.completions[news.serial]
        update = completion.take(news)
        self._moved.append(completion)
        self._num_finished += update.finish_reason is not None
        self._error = self._error or news.error
        if completion.index == 0:
            self._num_cached_tokens = news.num_cached_tokens
        if news.prompt_logprobs is not None:
            self._prompt_logprobs = [None, *map(completion.logprobs_at, news.prompt_logprobs)]
        return update

    def output(self) -> RequestOutput | None:
        """What the user is to see after a step; None if nothing yet."""
        moved, self._moved = self._moved, []
        if self._kind is RequestOutputKind.FINAL_ONLY and not self.finished:
            return None
        delta = self._kind is RequestOutputKind.DELTA
        shown = moved if delta else self.completions.values()
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt,
            prompt_token_ids=self._prompt_token_ids,
            outputs=[completion.output(delta=delta) for completion in shown],
            finished=self.finished,
            num_cached_tokens=self._num_cached_tokens,
            prompt_logprobs=self._take_prompt_logprobs() if delta else self._prompt_logprobs,
            error=self._error,
            metrics=self._metrics,
        )

    def _take_prompt_logprobs(self) -> list[TokenLogprobs | None] | None:
        taken, self._prompt_logprobs = self._prompt_logprobs, None
        return taken
