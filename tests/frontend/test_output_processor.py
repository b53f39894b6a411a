"""Core outputs become user outputs: text grows, stop strings end it, late news is dropped."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from engine.errors import RequestError
from engine.frontend.output_processor import OutputProcessor
from engine.frontend.tokenizer import Tokenizer
from engine.outputs import RequestOutput
from engine.sampling_params import SamplingParams
from engine.trace.events import Event, OutputText, TokenPieces
from engine.trace.recorder import Recorder

from .conftest import KINDS, Tokenizers


class Heard:
    """Keeps the events of a run in a list."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def feed(self, event: Event) -> None:
        self.events.append(event)


class Run:
    """One request whose output tokens the test decides."""

    def __init__(self, tokenizer: Tokenizer, prompt: str = "the fox", **params: Any) -> None:
        self.tokenizer = tokenizer
        self.heard = Heard()
        self.processor = OutputProcessor(tokenizer, Recorder.to_listener(self.heard, tokenizer.token_bytes))
        self.stopped: list[str] = []
        self.outputs: list[RequestOutput] = []
        self.add(0, "r", prompt, **params)

    def add(self, serial: int, request_id: str, prompt: str = "the fox", **params: Any) -> None:
        request = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=tuple(self.tokenizer.encode(prompt)),
            sampling_params=SamplingParams(**params),
        )
        self.processor.add_request(serial, request, prompt)

    def news(self, token_ids: list[int], serial: int = 0, **more: Any) -> list[RequestOutput]:
        news = EngineCoreOutput(serial=serial, request_id="r", new_token_ids=token_ids, **more)
        outputs, stopped = self.processor.process_outputs(EngineCoreOutputs(step=1, outputs=[news]))
        self.stopped += stopped
        self.outputs += outputs
        return outputs

    def write(self, text: str) -> None:
        """One step per token of a text."""
        for token_id in self.tokenizer.encode(text, add_special_tokens=False):
            if not self.finished:
                self.news([token_id])

    @property
    def finished(self) -> bool:
        return bool(self.outputs) and self.outputs[-1].finished

    @property
    def last(self) -> RequestOutput:
        return self.outputs[-1]

    def texts(self) -> list[OutputText]:
        return [event for event in self.heard.events if isinstance(event, OutputText)]


def test_text_and_tokens_grow_and_the_end_is_told(tokenizer: Tokenizer) -> None:
    run = Run(tokenizer)
    run.write("over the dog")
    assert not run.finished
    run.news([], finish_reason="length", num_cached_tokens=16)
    completion = run.last.outputs[0]
    assert (run.last.request_id, run.last.prompt) == ("r", "the fox")
    assert run.last.prompt_token_ids == tokenizer.encode("the fox")
    assert completion.token_ids == tokenizer.encode("over the dog", add_special_tokens=False)
    assert completion.text.strip() == "over the dog"
    assert (completion.finish_reason, completion.stop_reason) == ("length", None)
    assert run.last.num_cached_tokens == 16
    for before, after in zip(run.outputs, run.outputs[1:], strict=False):
        assert after.outputs[0].text.startswith(before.outputs[0].text)
    assert "".join(event.delta for event in run.texts()) == completion.text
    assert [event.finished for event in run.texts()][-1:] == [True]


def test_an_earlier_output_does_not_change_afterwards(tokenizer: Tokenizer) -> None:
    run = Run(tokenizer)
    run.news([10])
    first = run.last
    run.news([11])
    assert first.outputs[0].token_ids == [10]


def test_a_stop_string_ends_the_request_and_the_core_is_told(tokenizer: Tokenizer) -> None:
    run = Run(tokenizer, stop=("the dog jumps", "lazy"))
    run.write("over the dog jumps over")
    assert run.stopped == ["r"]
    completion = run.last.outputs[0]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "the dog jumps")
    assert completion.text.strip() == "over"
    assert run.texts()[-1].stop == "the dog jumps"
    assert run.texts()[-1].finished
    assert not any("the dog jumps".startswith(output.outputs[0].text[-1:]) for output in run.outputs if output.finished)


def test_a_stop_string_may_stay_in_the_text(tokenizer: Tokenizer) -> None:
    run = Run(tokenizer, stop="dog", include_stop_str_in_output=True)
    run.write("over the dog jumps over")
    assert run.last.outputs[0].text.strip() == "over the dog"


def test_tokens_behind_a_stop_string_are_dropped(tokenizer: Tokenizer) -> None:
    run = Run(tokenizer, stop="dog")
    ids = tokenizer.encode("over the dog jumps", add_special_tokens=False)
    run.news(ids)
    kept = run.last.outputs[0].token_ids
    assert kept == ids[: len(kept)]
    assert len(kept) < len(ids)
    assert tokenizer.decode(kept).endswith("dog")


def test_a_stop_string_counts_only_behind_min_tokens(tokenizer: Tokenizer) -> None:
    text = "over the dog and then the dog jumps"
    ids = tokenizer.encode(text, add_special_tokens=False)
    first = next(n for n in range(len(ids)) if tokenizer.decode(ids[:n]).endswith("dog"))
    run = Run(tokenizer, stop="dog", min_tokens=first, max_tokens=100)
    run.write(text)
    assert run.last.outputs[0].text.strip() == "over the dog and then the"
    run = Run(tokenizer, stop="dog", min_tokens=first - 1, max_tokens=100)
    run.write(text)
    assert run.last.outputs[0].text.strip() == "over the"


def test_a_stop_string_found_as_the_core_ends_the_request_needs_no_abort(tokenizer: Tokenizer) -> None:
    run = Run(tokenizer, stop="dog")
    run.news(tokenizer.encode("dog", add_special_tokens=False), finish_reason="length")
    assert run.stopped == []
    assert (run.last.outputs[0].finish_reason, run.last.outputs[0].stop_reason) == ("stop", "dog")


def test_text_held_back_comes_out_at_the_end(tokenizer: Tokenizer) -> None:
    run = Run(tokenizer, stop="dog jumps")
    run.write("the dog")
    assert run.last.outputs[0].text.strip() == "the"
    run.news([], finish_reason="length")
    assert run.last.outputs[0].text.strip() == "the dog"


def test_an_unfinished_character_becomes_a_replacement_at_the_end_only(tokenizer: Tokenizer) -> None:
    run = Run(tokenizer)
    lead = next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == b"\xf0")
    run.news([lead])
    assert run.last.outputs[0].text == ""
    run.news([lead], finish_reason="length")
    assert run.last.outputs[0].text == "\ufffd\ufffd"


def test_an_error_is_told_in_its_sentence(tokenizer: Tokenizer) -> None:
    run = Run(tokenizer)
    run.news([], finish_reason="error", error="The forward pass failed.")
    assert (run.last.outputs[0].finish_reason, run.last.error) == ("error", "The forward pass failed.")


def test_two_live_requests_may_not_share_an_id(tokenizer: Tokenizer) -> None:
    run = Run(tokenizer)
    with pytest.raises(RequestError, match="'r' belongs to a request"):
        run.processor.require_free(["s", "r"])
    with pytest.raises(RequestError, match="'s' belongs to a request"):
        run.processor.require_free(["s", "s"])
    run.news([], finish_reason="length")
    run.processor.require_free(["r"])


def test_late_news_never_reaches_the_next_request_of_that_id(tokenizer: Tokenizer) -> None:
    run = Run(tokenizer)
    run.news([10])
    run.processor.abort_requests(["r", "never heard of"])
    run.processor.require_free(["r"])
    run.add(1, "r", "the dog")
    assert run.news([11], serial=0) == []
    (output,) = run.news([12], serial=1)
    assert (output.prompt, output.outputs[0].token_ids) == ("the dog", [12])


def test_every_token_is_spelled_in_the_trace_once(tokenizer: Tokenizer) -> None:
    run = Run(tokenizer, prompt="the fox")
    run.add(1, "s", "the fox")
    run.news([10, 11, 10])
    run.news([11, 12], serial=1)
    events = [event for event in run.heard.events if isinstance(event, TokenPieces)]
    ids = [token_id for event in events for token_id in event.token_ids]
    prompt = tokenizer.encode("the fox")
    assert sorted(ids) == sorted({*prompt, 10, 11, 12})
    assert [piece for event in events for piece in event.pieces] == [tokenizer.token_bytes(i) for i in ids]


def test_without_a_trace_nothing_is_recorded_and_the_output_is_the_same(tokenizer: Tokenizer) -> None:
    run, silent = Run(tokenizer), Run(tokenizer)
    silent.processor = OutputProcessor(tokenizer)
    silent.add(0, "r")
    silent.heard.events.clear()
    for each in (run, silent):
        each.write("over the dog")
        each.news([], finish_reason="length")
    assert silent.last == run.last
    assert run.heard.events
    assert silent.heard.events == []


@pytest.mark.parametrize("which", KINDS)
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_how_many_tokens_a_step_brings_makes_no_difference(
    tokenizers_by_kind: Tokenizers, which: str, data: Any
) -> None:
    tokenizer = tokenizers_by_kind[which]
    text = data.draw(st.text(alphabet="ab é你😀", min_size=1, max_size=20))
    ids = tokenizer.encode(text, add_special_tokens=False)
    stop = tuple(data.draw(st.lists(st.text(alphabet="ab é你😀", min_size=1, max_size=4), max_size=2)))
    params = {"stop": stop, "include_stop_str_in_output": data.draw(st.booleans())}
    results = []
    for size in (1, data.draw(st.integers(1, 6)), len(ids) or 1):
        run = Run(tokenizer, **params)
        for start in range(0, len(ids), size):
            if not run.finished:
                run.news(ids[start : start + size])
        if not run.finished:
            run.news([], finish_reason="length")
        assert "".join(event.delta for event in run.texts()) == run.last.outputs[0].text
        results.append(run.last.outputs)
    assert results[0] == results[1] == results[2]
