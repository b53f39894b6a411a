"""The front doors: `LLM.generate` for prompts in bulk, `LLMEngine` a step at a time."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.errors import ConfigError, OrreryError, RequestError
from engine.frontend.prompts import Prompt
from engine.llm import LLM
from engine.llm_engine import LLMEngine
from engine.outputs import RequestOutput
from engine.sampling_params import SamplingParams
from engine.trace.events import (
    Event,
    ForwardLogits,
    OutputText,
    RequestAborted,
    RequestAdded,
    RequestFinished,
    StepScheduled,
    TokenPieces,
)
from engine.trace.file import read_trace

MODEL = "orrery-tiny"
ARGS: dict[str, Any] = {
    "dtype": "float32",
    "device": "cpu",
    "num_gpu_blocks_override": 130,
    "max_model_len": 256,
    "max_num_seqs": 8,
}
PROMPTS: list[Prompt] = ["Once upon a time", "The moon", {"prompt": "A small engine"}, "Hello"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
RANDOM = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """One engine for all tests that leave it as they found it."""
    llm = LLM(model=MODEL, **ARGS)
    yield llm
    llm.llm_engine.close()


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[tuple[LLMEngine, Path]]:
    """An engine of its own, and its trace."""
    trace = tmp_path / "trace.jsonl"
    with LLMEngine.from_engine_args(MODEL, trace=trace, **ARGS) as llm_engine:
        yield llm_engine, trace


@pytest.fixture(scope="module")
def text(llm: LLM) -> str:
    """What the model says to "Once upon a time" if nothing stops it."""
    return llm.generate("Once upon a time", GREEDY)[0].outputs[0].text


def tokens_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def finish(llm_engine: LLMEngine) -> dict[str, RequestOutput]:
    """Run until nothing is left; the last output of each request."""
    last: dict[str, RequestOutput] = {}
    while llm_engine.has_unfinished_requests():
        last |= {output.request_id: output for output in llm_engine.step()}
    return last


def of_kind(trace: Path, *kinds: type[Event]) -> list[Any]:
    return [event for event in read_trace(trace).events if isinstance(event, kinds)]


class TestGenerate:
    def test_there_is_one_output_per_prompt_in_their_order(self, llm: LLM) -> None:
        outputs = llm.generate(PROMPTS, GREEDY)
        assert [output.prompt for output in outputs] == ["Once upon a time", "The moon", "A small engine", "Hello"]
        tokenizer = llm.get_tokenizer()
        for output in outputs:
            (completion,) = output.outputs
            assert output.finished and completion.finished()
            assert (completion.index, completion.finish_reason, completion.stop_reason) == (0, "length", None)
            assert len(completion.token_ids) == 20
            ids = [*output.prompt_token_ids, *completion.token_ids]
            assert tokenizer.decode(ids) == output.prompt + completion.text  # type: ignore[operator]

    def test_outputs_keep_the_order_of_the_prompts_when_later_ones_finish_first(self, llm: LLM) -> None:
        params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (20, 3, 9, 1)]
        assert [len(tokens) for tokens in tokens_of(llm.generate(PROMPTS, params))] == [20, 3, 9, 1]

    @pytest.mark.parametrize("prompt", ["Hello", {"prompt": "Hello"}])
    def test_one_prompt_may_come_without_a_list(self, llm: LLM, prompt: Prompt) -> None:
        assert tokens_of(llm.generate(prompt, GREEDY)) == tokens_of(llm.generate(["Hello"], GREEDY))

    def test_token_ids_are_as_good_as_the_text_they_stand_for(self, llm: LLM) -> None:
        ids = llm.get_tokenizer().encode("Hello")
        (output,) = llm.generate({"prompt_token_ids": ids}, GREEDY)
        assert (output.prompt, output.prompt_token_ids) == (None, ids)
        assert output.outputs == llm.generate("Hello", GREEDY)[0].outputs

    def test_no_prompts_give_no_outputs(self, llm: LLM) -> None:
        assert llm.generate([], GREEDY) == []

    def test_without_parameters_the_defaults_hold(self, llm: LLM) -> None:
        (output,) = llm.generate("Hello")
        assert 0 < len(output.outputs[0].token_ids) <= 16

    def test_parameters_are_one_for_all_or_one_per_prompt(self, llm: LLM) -> None:
        with pytest.raises(RequestError, match="got 2 for 4 prompts"):
            llm.generate(PROMPTS, [GREEDY, GREEDY])
        for wrong in ({"temperature": 0.0}, 3):
            with pytest.raises(RequestError, match="must be SamplingParams"):
                llm.generate(PROMPTS, wrong)  # type: ignore[arg-type]

    def test_one_bad_prompt_refuses_the_whole_call(self, llm: LLM) -> None:
        before = tokens_of(llm.generate(PROMPTS, GREEDY))
        with pytest.raises(RequestError, match="empty"):
            llm.generate([*PROMPTS, ""], GREEDY)
        assert not llm.llm_engine.has_unfinished_requests()
        assert tokens_of(llm.generate(PROMPTS, GREEDY)) == before

    def test_more_prompts_than_fit_in_a_batch_all_finish(self, llm: LLM) -> None:
        outputs = llm.generate(["Hello"] * 30, GREEDY)
        assert len({tuple(tokens) for tokens in tokens_of(outputs)}) == 1
        assert len(outputs) == 30

    def test_the_progress_bar_is_drawn_on_terminals_only(self, llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
        llm.generate("Hello", GREEDY, use_tqdm=True)
        assert capsys.readouterr() == ("", "")

    def test_a_stop_token_ends_the_output_and_stays_in_it(self, llm: LLM) -> None:
        tokens = tokens_of(llm.generate("Once upon a time", GREEDY))[0]
        params = SamplingParams(temperature=0.0, max_tokens=20, stop_token_ids=(tokens[5],))
        (output,) = llm.generate("Once upon a time", params)
        completion = output.outputs[0]
        assert completion.token_ids == tokens[: tokens.index(tokens[5]) + 1]
        assert (completion.finish_reason, completion.stop_reason) == ("stop", tokens[5])

    def test_without_max_tokens_the_model_may_fill_its_length(self, llm: LLM) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
        (output,) = llm.generate("Hello", params)
        assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == ARGS["max_model_len"]
        assert output.outputs[0].finish_reason == "length"


class TestSampling:
    def test_unseeded_requests_differ_yet_every_run_is_the_same(self) -> None:
        runs = []
        for _ in range(2):
            with LLMEngine.from_engine_args(MODEL, **ARGS) as llm_engine:
                for name in "abc":
                    llm_engine.add_request(name, "Once upon a time", RANDOM)
                outputs = finish(llm_engine)
                runs.append([outputs[name].outputs[0].token_ids for name in "abc"])
        assert runs[0] == runs[1]
        assert runs[0][0] != runs[0][1] != runs[0][2]

    def test_the_engines_seed_decides_what_unseeded_requests_get(self) -> None:
        texts = set()
        for seed in (0, 1):
            with LLMEngine.from_engine_args(MODEL, seed=seed, **ARGS) as llm_engine:
                llm_engine.add_request("a", "Once upon a time", RANDOM)
                texts.add(finish(llm_engine)["a"].outputs[0].text)
        assert len(texts) == 2

    def test_a_seeded_request_is_the_same_in_any_company(self, llm: LLM) -> None:
        seeded = SamplingParams(temperature=1.0, seed=11, max_tokens=20, ignore_eos=True)
        alone = tokens_of(llm.generate("Once upon a time", seeded))[0]
        for _ in range(3):
            among = llm.generate(["The moon", "Once upon a time", "Hello"], [RANDOM, seeded, RANDOM])
            assert tokens_of(among)[1] == alone

    def test_a_tiny_temperature_is_greedy_beside_rows_that_are_not(self, llm: LLM) -> None:
        expected = tokens_of(llm.generate("Once upon a time", GREEDY))[0]
        shape: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True}
        params = [
            SamplingParams(temperature=1e-12, **shape),
            SamplingParams(temperature=0.8, top_k=1, **shape),
            SamplingParams(temperature=1.0, top_k=10**9, seed=3, **shape),
            SamplingParams(temperature=0.0, top_k=5, top_p=0.5, min_p=0.1, **shape),
        ]
        tokens = tokens_of(llm.generate(["Once upon a time"] * 4, params))
        assert tokens[0] == tokens[1] == tokens[3] == expected
        assert tokens[2] == tokens_of(llm.generate("Once upon a time", SamplingParams(seed=3, **shape)))[0]


class TestStopStrings:
    @pytest.mark.parametrize("include", [False, True])
    def test_any_piece_of_the_text_can_end_it(self, llm: LLM, text: str, include: bool) -> None:
        for start in range(1, len(text) - 4, 3):
            stop = text[start : start + 4]
            params = SamplingParams(
                temperature=0.0, max_tokens=20, ignore_eos=True, stop=stop, include_stop_str_in_output=include
            )
            completion = llm.generate("Once upon a time", params)[0].outputs[0]
            assert completion.text == text[: text.index(stop) + (len(stop) if include else 0)]
            assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
        assert not llm.llm_engine.has_unfinished_requests()

    def test_no_beginning_of_it_is_ever_shown(self, recorded: tuple[LLMEngine, Path], text: str) -> None:
        llm_engine, trace = recorded
        stop = text[len(text) // 2 :][:6]
        params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, stop=stop)
        llm_engine.add_request("a", "Once upon a time", params)
        shown = []
        while llm_engine.has_unfinished_requests():
            shown += [output.outputs[0].text for output in llm_engine.step()]
        final = text[: text.index(stop)]
        assert shown[-1] == final
        assert all(final.startswith(each) for each in shown)
        (aborted,) = of_kind(trace, RequestAborted)
        assert aborted.cause == "stop string"
        deltas = of_kind(trace, OutputText)
        assert "".join(event.delta for event in deltas) == final
        assert (deltas[-1].stop, deltas[-1].finished) == (stop, True)


class TestSteps:
    def test_text_and_tokens_grow_from_step_to_step(self, recorded: tuple[LLMEngine, Path]) -> None:
        llm_engine, _ = recorded
        llm_engine.add_request("a", "Once upon a time", GREEDY)
        outputs: list[RequestOutput] = []
        while llm_engine.has_unfinished_requests():
            outputs += llm_engine.step()
        assert [len(output.outputs[0].token_ids) for output in outputs] == list(range(1, 21))
        assert [output.finished for output in outputs] == [False] * 19 + [True]
        for before, after in itertools.pairwise(outputs):
            assert after.outputs[0].text.startswith(before.outputs[0].text)

    def test_requests_may_come_at_any_time(self, recorded: tuple[LLMEngine, Path], llm: LLM) -> None:
        llm_engine, trace = recorded
        llm_engine.add_request("early", "Once upon a time", GREEDY)
        for _ in range(5):
            llm_engine.step()
        llm_engine.add_request("late", "The moon", GREEDY)
        outputs = finish(llm_engine)
        expected = tokens_of(llm.generate(["Once upon a time", "The moon"], GREEDY))
        assert [outputs[name].outputs[0].token_ids for name in ("early", "late")] == expected
        assert max(len(step.requests) for step in of_kind(trace, StepScheduled)) == 2

    def test_a_step_with_nothing_to_do_does_nothing(self, recorded: tuple[LLMEngine, Path]) -> None:
        llm_engine, _ = recorded
        assert llm_engine.step() == []

    def test_two_live_requests_may_not_share_an_id(self, recorded: tuple[LLMEngine, Path]) -> None:
        llm_engine, _ = recorded
        llm_engine.add_request("a", "Once upon a time", GREEDY)
        with pytest.raises(RequestError, match="'a' belongs to a request"):
            llm_engine.add_request("a", "The moon", GREEDY)
        llm_engine.step()
        with pytest.raises(RequestError, match="'a' belongs to a request"):
            llm_engine.add_request("a", "The moon", GREEDY)
        assert finish(llm_engine)["a"].prompt == "Once upon a time"
        llm_engine.add_request("a", "The moon", GREEDY)
        assert finish(llm_engine)["a"].prompt == "The moon"

    def test_an_id_is_free_as_soon_as_its_request_is_aborted(self, recorded: tuple[LLMEngine, Path], llm: LLM) -> None:
        llm_engine, trace = recorded
        llm_engine.add_request("a", "Once upon a time", GREEDY)
        llm_engine.add_request("b", "Hello", GREEDY)
        for _ in range(3):
            llm_engine.step()
        llm_engine.abort_request("a")
        llm_engine.abort_request(["a", "unheard of"])
        llm_engine.add_request("a", "The moon", GREEDY)
        outputs = finish(llm_engine)
        assert outputs["a"].prompt == "The moon"
        expected = tokens_of(llm.generate(["The moon", "Hello"], GREEDY))
        assert [outputs[name].outputs[0].token_ids for name in "ab"] == expected
        assert [event.cause for event in of_kind(trace, RequestAborted)] == ["client"]

    def test_a_request_can_be_aborted_before_its_first_step(self, recorded: tuple[LLMEngine, Path]) -> None:
        llm_engine, _ = recorded
        llm_engine.add_request("a", "Once upon a time", GREEDY)
        llm_engine.abort_request("a")
        assert not llm_engine.has_unfinished_requests()
        assert llm_engine.step() == []

    def test_urgent_requests_go_first_under_the_priority_policy(self) -> None:
        with LLMEngine.from_engine_args(MODEL, policy="priority", **{**ARGS, "max_num_seqs": 1}) as llm_engine:
            for name, priority in (("calm", 5), ("urgent", -1), ("usual", 0)):
                llm_engine.add_request(name, "Hello", GREEDY, priority)
            finished = []
            while llm_engine.has_unfinished_requests():
                finished += [output.request_id for output in llm_engine.step() if output.finished]
        assert finished == ["urgent", "usual", "calm"]


class TestPrefixCache:
    def test_a_prompt_that_fills_its_blocks_is_found_but_for_one_token(self, llm: LLM) -> None:
        block = 16
        assert llm.llm_engine.reset_prefix_cache()
        ids = list(range(100, 100 + 3 * block))
        first, second = (llm.generate({"prompt_token_ids": ids}, GREEDY)[0] for _ in range(2))
        assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 2 * block)
        assert second.outputs == first.outputs
        (longer,) = llm.generate({"prompt_token_ids": [*ids, 7, 8]}, GREEDY)
        assert longer.num_cached_tokens == 3 * block
        stats = llm.llm_engine.make_prefix_cache_stats()
        assert (stats.requests, stats.queries, stats.hits) == (3, 9 * block + 2, 5 * block)
        assert stats.recent_hit_rate == stats.hit_rate > 0.5

    def test_a_salt_keeps_prefixes_apart(self, llm: LLM) -> None:
        assert llm.llm_engine.reset_prefix_cache()
        prompt: Prompt = {"prompt_token_ids": list(range(100, 140)), "cache_salt": "one"}
        other: Prompt = {"prompt_token_ids": list(range(100, 140)), "cache_salt": "two"}
        outputs = [llm.generate(each, GREEDY)[0] for each in (prompt, other, prompt)]
        assert [output.num_cached_tokens for output in outputs] == [0, 0, 32]
        assert tokens_of(outputs[:1]) * 3 == tokens_of(outputs)

    def test_it_can_be_forgotten_when_nothing_runs(self, recorded: tuple[LLMEngine, Path]) -> None:
        llm_engine, _ = recorded
        prompt: Prompt = {"prompt_token_ids": list(range(100, 140))}
        cached = []
        for name in ("first", "second", "after the reset"):
            llm_engine.add_request(name, prompt, GREEDY)
            llm_engine.step()
            assert not llm_engine.reset_prefix_cache()
            cached.append(finish(llm_engine)[name].num_cached_tokens)
            if name == "second":
                assert llm_engine.reset_prefix_cache()
        assert cached == [0, 32, 0]


class TestInterrupt:
    def test_ctrl_c_takes_the_requests_out_and_the_engine_goes_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trace = tmp_path / "trace.jsonl"
        llm = LLM(model=MODEL, trace=trace, **ARGS)
        expected = tokens_of(llm.generate(PROMPTS, GREEDY))
        step, steps = llm.llm_engine.step, iter(range(100))

        def step_and_interrupt() -> list[RequestOutput]:
            if next(steps) == 4:
                signal.raise_signal(signal.SIGINT)
            return step()

        with monkeypatch.context() as patched:
            patched.setattr(llm.llm_engine, "step", step_and_interrupt)
            with pytest.raises(KeyboardInterrupt):
                llm.generate(PROMPTS, GREEDY)
        assert next(steps) == 5, "the step under way is finished, and none is begun after it"
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert not llm.llm_engine.has_unfinished_requests()
        assert tokens_of(llm.generate(PROMPTS, GREEDY)) == expected
        llm.llm_engine.close()
        reasons = [event.finish_reason for event in of_kind(trace, RequestFinished)]
        assert reasons == ["length"] * 4 + ["abort"] * 4 + ["length"] * 4


class TestTrace:
    def test_no_file_means_no_trace(self, llm: LLM) -> None:
        assert llm.llm_engine.config.trace.level == "off"

    @pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.zst"])
    def test_a_run_is_recorded_from_its_first_request_to_its_last_word(self, tmp_path: Path, name: str) -> None:
        trace_file = tmp_path / "new folder" / name
        llm = LLM(model=MODEL, trace=trace_file, **ARGS)
        outputs = llm.generate(PROMPTS, GREEDY)
        llm.llm_engine.close()
        trace = read_trace(trace_file)
        assert trace.truncated is None
        header = trace.header
        assert (header.level, header.config.trace.level, header.device) == ("forward", "forward", "cpu")
        assert header.engine_version == engine.__version__
        assert header.config.model.model == MODEL
        assert (header.model, header.kv_cache) == (llm.llm_engine.model, llm.llm_engine.kv_cache)
        tokenizer = llm.get_tokenizer()
        assert header.tokenizer == f"{tokenizer.name} sha256:{tokenizer.digest}"
        assert {"python", "torch"} <= set(header.environment)
        added = of_kind(trace_file, RequestAdded)
        assert [list(event.prompt_token_ids) for event in added] == [output.prompt_token_ids for output in outputs]
        assert all(event.sampling_params.seed is not None for event in added)
        for serial, output in enumerate(outputs):
            text = "".join(event.delta for event in of_kind(trace_file, OutputText) if event.request == serial)
            assert text == output.outputs[0].text
        spelled = [token_id for event in of_kind(trace_file, TokenPieces) for token_id in event.token_ids]
        used = {i for output in outputs for i in (*output.prompt_token_ids, *output.outputs[0].token_ids)}
        used.update(i for event in of_kind(trace_file, ForwardLogits) for row in event.top_token_ids for i in row)
        assert sorted(spelled) == sorted(used)

    def test_the_file_can_be_read_while_the_run_goes_on(self, recorded: tuple[LLMEngine, Path]) -> None:
        llm_engine, trace = recorded
        llm_engine.add_request("a", "Once upon a time", GREEDY)
        for step in range(1, 6):
            llm_engine.step()
            assert of_kind(trace, OutputText, StepScheduled)[-1].step == step

    def test_a_dropped_engine_leaves_a_whole_file(self, tmp_path: Path) -> None:
        trace = tmp_path / "trace.jsonl.zst"
        program = (
            "from engine import LLM, SamplingParams\n"
            f"llm = LLM(model={MODEL!r}, trace={str(trace)!r}, max_model_len=256, num_gpu_blocks_override=64)\n"
            "llm.generate('Hello', SamplingParams(max_tokens=4, ignore_eos=True))\n"
        )
        subprocess.run([sys.executable, "-c", program], check=True)
        assert read_trace(trace).truncated is None
        assert [event.finish_reason for event in of_kind(trace, RequestFinished)] == ["length"]

    def test_the_same_inputs_give_the_same_bytes_once_what_was_measured_is_masked(self, tmp_path: Path) -> None:
        recordings = []
        for trace in (tmp_path / "one.jsonl", tmp_path / "two.jsonl"):
            llm = LLM(model=MODEL, trace=trace, **ARGS)
            llm.generate(PROMPTS, RANDOM)
            llm.generate(PROMPTS, GREEDY)
            llm.llm_engine.close()
            measured = rb'"(ts|\w+_ns|(?:total|available|activation|budget)_bytes)":\d+'
            recordings.append(re.sub(measured, rb'"\1":0', trace.read_bytes()))
        assert recordings[0] == recordings[1]
        assert recordings[0].count(b"\n") > 500

    def test_file_and_level_must_agree(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="leave out one of the two"):
            LLM(model=MODEL, trace=tmp_path / "t.jsonl", trace_level="off", **ARGS)
        with pytest.raises(ConfigError, match="add trace=FILE"):
            LLM(model=MODEL, trace_level="control", **ARGS)
        assert not (tmp_path / "t.jsonl").exists()

    def test_tracing_changes_nothing(self, recorded: tuple[LLMEngine, Path], llm: LLM) -> None:
        llm_engine, _ = recorded
        llm_engine.add_request("a", "Once upon a time", GREEDY)
        assert finish(llm_engine)["a"].outputs == llm.generate("Once upon a time", GREEDY)[0].outputs


class TestClose:
    def test_a_closed_engine_says_so(self) -> None:
        llm = LLM(model=MODEL, **ARGS)
        llm.llm_engine.close()
        llm.llm_engine.close()
        for use in (lambda: llm.generate("Hello"), llm.llm_engine.step, llm.llm_engine.reset_prefix_cache):
            with pytest.raises(OrreryError, match="The engine is closed"):
                use()

    def test_several_engines_live_side_by_side(self, llm: LLM) -> None:
        with LLMEngine.from_engine_args(MODEL, **ARGS) as other:
            other.add_request("a", "Once upon a time", GREEDY)
            other.step()
            expected = llm.generate("Once upon a time", GREEDY)[0].outputs
            assert finish(other)["a"].outputs == expected


class TestPackage:
    def test_the_front_doors_are_found_where_people_look(self) -> None:
        assert (engine.LLM, engine.LLMEngine, engine.SamplingParams) == (LLM, LLMEngine, SamplingParams)
        assert set(engine.__all__) <= set(dir(engine))
        with pytest.raises(AttributeError, match="no_such_thing"):
            _ = engine.no_such_thing

    def test_the_contract_and_the_core_load_without_torch(self) -> None:
        program = "import engine.trace, engine.core.engine_core, sys; assert 'torch' not in sys.modules"
        subprocess.run([sys.executable, "-c", program], check=True)

    def test_the_model_folder_is_known(self, llm: LLM, tiny_model_path: Path) -> None:
        assert Path(llm.llm_engine.model_path) == tiny_model_path
