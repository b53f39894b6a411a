"""`OutputProcessor`: what the core sends back becomes what the user sees.

It keeps, per live request, the text so far. A stop string is found here and not in the core, which knows no text; the
requests that one ended are handed back to be aborted there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from engine.core.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from engine.errors import RequestError
from engine.frontend.detokenizer import Detokenizer
from engine.frontend.stop_strings import StopStrings
from engine.frontend.tokenizer import Tokenizer
from engine.metrics import RequestMetrics
from engine.outputs import CompletionOutput, RequestOutput
from engine.trace.events import OutputText, TokenPieces
from engine.trace.recorder import EventSink


class ProcessedOutputs(NamedTuple):
    """The news for users, and the ids of requests that the core must be told to abort."""

    request_outputs: list[RequestOutput]
    stopped: list[str]


class OutputProcessor:
    """Turns `EngineCoreOutputs` into `RequestOutput`s.

    Args:
        tokenizer: the model's tokenizer.
        trace: where events go; None costs nothing.
    """

    def __init__(self, tokenizer: Tokenizer, trace: EventSink | None = None) -> None:
        self._tokenizer = tokenizer
        self._trace = trace
        # By serial, since an id may be used again while an output of its first bearer is still on its way.
        self._requests: dict[int, _RequestState] = {}
        self._serials: dict[str, int] = {}
        self._seen_token_ids: set[int] = set()

    def require_free(self, request_ids: Iterable[str]) -> None:
        """Check that ids can be given to new requests.

        Raises:
            RequestError: an id belongs to a live request, or occurs twice.
        """
        taken = set(self._serials)
        for request_id in request_ids:
            if request_id in taken:
                raise RequestError(f"The request id {request_id!r} belongs to a request that is not finished yet.")
            taken.add(request_id)

    def add_request(
        self, serial: int, request: EngineCoreRequest, prompt: str | None, metrics: RequestMetrics | None = None
    ) -> None:
        """Expect the output of a request that the core has given a serial, and whose metrics may be collected."""
        self._requests[serial] = _RequestState(request, prompt, self._tokenizer, metrics)
        self._serials[request.request_id] = serial
        self._record_pieces(request.prompt_token_ids)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """Expect no more of these requests; ids that are not alive are ignored."""
        for request_id in request_ids:
            if request_id in self._serials:
                del self._requests[self._serials.pop(request_id)]

    def process_outputs(self, outputs: EngineCoreOutputs) -> ProcessedOutputs:
        """Take in the news of one step. News of a request that was aborted meanwhile is dropped."""
        processed = ProcessedOutputs([], [])
        for news in outputs.outputs:
            request = self._requests.get(news.serial)
            if request is None:
                continue
            self._record_pieces(news.new_token_ids)
            update = request.take(news)
            self._record_text(news.serial, update)
            processed.request_outputs.append(request.output(update))
            if update.finish_reason is not None:
                self.abort_requests([request.request_id])
            if update.stop is not None and news.finish_reason is None:
                processed.stopped.append(request.request_id)
        return processed

    def _record_pieces(self, token_ids: Iterable[int]) -> None:
        if self._trace is None:
            return
        new = [token_id for token_id in dict.fromkeys(token_ids) if token_id not in self._seen_token_ids]
        if new:
            self._seen_token_ids.update(new)
            pieces = [self._tokenizer.token_bytes(token_id) for token_id in new]
            self._trace.emit(TokenPieces(token_ids=new, pieces=pieces))

    def _record_text(self, serial: int, update: _Update) -> None:
        finished = update.finish_reason is not None
        if self._trace is not None and (update.delta or finished):
            self._trace.emit(OutputText(request=serial, delta=update.delta, stop=update.stop, finished=finished))


class _Update(NamedTuple):
    """What one step did to a request, text considered."""

    delta: str
    stop: str | None
    finish_reason: str | None
    stop_reason: int | str | None
    num_cached_tokens: int
    error: str | None


class _RequestState:
    """One live request: its tokens and its text so far."""

    def __init__(
        self, request: EngineCoreRequest, prompt: str | None, tokenizer: Tokenizer, metrics: RequestMetrics | None
    ) -> None:
        params = request.sampling_params
        self.request_id = request.request_id
        self._prompt = prompt
        self._metrics = metrics
        self._prompt_token_ids = list(request.prompt_token_ids)
        self._min_tokens = params.min_tokens
        self._detokenizer = Detokenizer(tokenizer, request.prompt_token_ids, params.skip_special_tokens)
        self._stop_strings = StopStrings(params.stop, params.include_stop_str_in_output)
        self._token_ids: list[int] = []
        self._text = ""

    def take(self, news: EngineCoreOutput) -> _Update:
        """Add what the core brought; a stop string in it ends the request whatever the core thought."""
        delta, stop = self._extend(news.new_token_ids)
        if news.finish_reason is not None and stop is None:
            rest, stop = self._end()
            delta += rest
        self._text += delta
        reasons = ("stop", stop) if stop is not None else (news.finish_reason, news.stop_reason)
        return _Update(delta, stop, *reasons, news.num_cached_tokens, news.error)

    def output(self, update: _Update) -> RequestOutput:
        """How the request stands after an update."""
        completion = CompletionOutput(
            index=0,
            text=self._text,
            token_ids=self._token_ids.copy(),
            finish_reason=update.finish_reason,
            stop_reason=update.stop_reason,
        )
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt,
            prompt_token_ids=self._prompt_token_ids,
            outputs=[completion],
            finished=completion.finished(),
            num_cached_tokens=update.num_cached_tokens,
            error=update.error,
            metrics=self._metrics,
        )

    def _extend(self, new_token_ids: list[int]) -> tuple[str, str | None]:
        """Add tokens up to the one that completes a stop string."""
        delta = ""
        for token_id in new_token_ids:
            self._token_ids.append(token_id)
            certain, stop = self._push(self._detokenizer.push(token_id))
            delta += certain
            if stop is not None:
                return delta, stop
        return delta, None

    def _end(self) -> tuple[str, str | None]:
        rest, stop = self._push(self._detokenizer.finish())
        return (rest, stop) if stop is not None else (rest + self._stop_strings.flush(), None)

    def _push(self, text: str) -> tuple[str, str | None]:
        return self._stop_strings.push(text, armed=len(self._token_ids) > self._min_tokens)
