"""`Completion`: what one core request has put out, as the user is to see it: tokens, text, log probabilities."""

from __future__ import annotations

from typing import NamedTuple

from engine.core.messages import EngineCoreOutput, EngineCoreRequest
from engine.frontend.detokenizer import Detokenizer
from engine.frontend.stop_strings import StopStrings
from engine.frontend.tokenizer import Tokenizer
from engine.logprobs import Logprob, TokenLogprobs, TopLogprobs
from engine.outputs import CompletionOutput


class Update(NamedTuple):
    """What one step did to a completion, text considered."""

    delta: str
    """Text that became certain."""
    new_token_ids: list[int]
    new_logprobs: list[TokenLogprobs]
    stop: str | None
    """The stop string that was found."""
    finish_reason: str | None
    stop_reason: int | str | None


class Completion:
    """One completion of a prompt while it grows.

    Args:
        request: what the core was asked to run.
        tokenizer: the model's tokenizer.
    """

    def __init__(self, request: EngineCoreRequest, tokenizer: Tokenizer) -> None:
        params = request.sampling_params
        self.request_id = request.request_id
        self.index = request.child_index
        self.update: Update | None = None
        """What the last step did to it."""
        self._min_tokens = params.min_tokens
        self._keeps_stop = params.include_stop_str_in_output
        self._tokenizer = tokenizer
        self._detokenizer: Detokenizer | None = None
        if params.detokenize:
            prompt = request.prompt_token_ids if request.prompt_embeds is None else ()
            self._detokenizer = Detokenizer(tokenizer, prompt, params.skip_special_tokens)
        self._stop_strings = StopStrings(params.stop, params.include_stop_str_in_output)
        self._token_ids: list[int] = []
        self._text = ""
        self._logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
        self._cumulative_logprob = 0.0

    def take(self, news: EngineCoreOutput) -> Update:
        """Add what the core brought; a stop string in it ends the completion whatever the core thought."""
        before = len(self._token_ids)
        delta, stop = self._extend(news)
        if news.finish_reason is not None and stop is None:
            rest, stop = self._end()
            delta += rest
        self._text += delta
        new_token_ids = self._token_ids[before:]
        new_logprobs = self._take_logprobs(new_token_ids, news.new_logprobs or [])
        reasons = ("stop", stop) if stop is not None else (news.finish_reason, news.stop_reason)
        self.update = Update(delta, new_token_ids, new_logprobs, stop, *reasons)
        return self.update

    def output(self, *, delta: bool) -> CompletionOutput:
        """How it stands, or what the last step did to it."""
        update = self.update or Update("", [], [], None, None, None)
        logprobs = None if self._logprobs is None else update.new_logprobs if delta else self._logprobs.copy()
        return CompletionOutput(
            index=self.index,
            text=update.delta if delta else self._text,
            token_ids=update.new_token_ids if delta else self._token_ids.copy(),
            cumulative_logprob=None if self._logprobs is None else self._cumulative_logprob,
            logprobs=logprobs,
            finish_reason=update.finish_reason,
            stop_reason=update.stop_reason,
        )

    def logprobs_at(self, place: TopLogprobs) -> TokenLogprobs:
        """Log probabilities of one place, spelled out."""
        told: TokenLogprobs = {}
        for number, (token_id, logprob) in enumerate(zip(place.token_ids, place.logprobs, strict=True)):
            # The token that stands there comes first, and may come again among the most likely ones.
            if token_id not in told:
                rank = number or place.rank
                told[token_id] = Logprob(logprob=logprob, rank=rank, decoded_token=self._spell(token_id))
        return told

    def _take_logprobs(self, token_ids: list[int], places: list[TopLogprobs]) -> list[TokenLogprobs]:
        if self._logprobs is None:
            return []
        new = [self.logprobs_at(place) for _, place in zip(token_ids, places, strict=False)]
        self._logprobs += new
        self._cumulative_logprob += sum(place.logprobs[0] for place in places[: len(token_ids)])
        return new

    def _spell(self, token_id: int) -> str | None:
        if self._detokenizer is None:
            return None
        return self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")

    def _extend(self, news: EngineCoreOutput) -> tuple[str, str | None]:
        """Add tokens up to the one that completes a stop string."""
        # A stop token, which the core finds, is the last one. It ends the text, and is no part of it.
        ends = news.finish_reason == "stop" and not self._keeps_stop
        num_shown = len(news.new_token_ids) - ends
        delta = ""
        for number, token_id in enumerate(news.new_token_ids):
            self._token_ids.append(token_id)
            if self._detokenizer is None or number >= num_shown:
                continue
            certain, stop = self._push(self._detokenizer.push(token_id))
            delta += certain
            if stop is not None:
                return delta, stop
        return delta, None

    def _end(self) -> tuple[str, str | None]:
        if self._detokenizer is None:
            return "", None
        rest, stop = self._push(self._detokenizer.finish())
        return (rest, stop) if stop is not None else (rest + self._stop_strings.flush(), None)

    def _push(self, text: str) -> tuple[str, str | None]:
        return self._stop_strings.push(text, armed=len(self._token_ids) > self._min_tokens)
