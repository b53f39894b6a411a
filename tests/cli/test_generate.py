"""`orrery generate`: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.cli import main
from engine.trace.events import RequestAdded, SpecVerdict
from engine.trace.file import read_trace

PROMPT = "Once upon a time"
TINY = ["generate", "--model", "orrery-tiny", "--temperature", "0", "--max-tokens", "6"]


def test_it_prints_the_text_and_what_to_do_with_the_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "run.jsonl"
    assert main([*TINY, "--prompt", PROMPT, "--prompt", "The moon", "--trace", str(trace)]) == 0
    shown = capsys.readouterr().out
    assert PROMPT in shown
    assert "2 requests, 12 tokens" in shown
    assert f"orrery replay {trace}" in shown
    assert main(["replay", str(trace)]) == 0
    assert capsys.readouterr().out.rstrip().endswith("decisions, 0 divergences")


def test_a_model_whose_name_looks_like_markup(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--prompt", PROMPT, "--model", "[/x]"]) != 0
    said = capsys.readouterr().err
    assert "[/x]" in said
    assert "MarkupError" not in said


def test_an_output_that_cannot_show_everything() -> None:
    command = [sys.executable, "-m", "engine.cli", *TINY, "--prompt", "snow ☃"]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=False)
    assert done.returncode == 0, done.stderr
    assert rb"\u2603" in done.stdout


def test_arguments_that_are_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--prompt", PROMPT, "--stop", "\udcff"]) == 2
    assert "stop must be valid Unicode" in capsys.readouterr().err


def test_the_same_seed_gives_the_same_text(capsys: pytest.CaptureFixture[str]) -> None:
    def story(seed: str) -> str:
        assert main(["generate", "--prompt", PROMPT, "--max-tokens", "12", "--seed", seed]) == 0
        return capsys.readouterr().out.partition("\n0:")[0]

    first = story("1")
    assert story("1") == first
    assert any(story(seed) != first for seed in ("2", "3"))


def test_engine_arguments_reach_the_engine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "run.jsonl"
    flags = ["--block-size", "8", "--num-gpu-blocks-override", "32", "--max-model-len", "64", "--max-num-seqs", "2"]
    flags += ["--max-num-batched-tokens", "16", "--long-prefill-token-threshold", "4", "--no-enable-prefix-caching"]
    flags += ["--dtype", "float32", "--device", "cpu", "--trace-level", "control"]
    assert main([*TINY, "--prompt", PROMPT, "--trace", str(trace), *flags]) == 0
    config = read_trace(trace).header.config
    assert config.cache.block_size == 8
    assert config.cache.num_gpu_blocks_override == 32
    assert not config.cache.enable_prefix_caching
    assert config.model.max_model_len == 64
    assert config.model.dtype == "float32"
    assert config.model.device == "cpu"
    assert config.scheduler.max_num_seqs == 2
    assert config.scheduler.max_num_batched_tokens == 16
    assert config.scheduler.long_prefill_token_threshold == 4
    assert config.trace.level == "control"


def test_control_characters_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--prompt", "\x1b[31mred\x07"]) == 0
    shown = capsys.readouterr().out
    assert "\\x1b[31mred\\x07" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("flags", "said", "exit_code"),
    [
        (["--temperature", "nan"], "temperature", 2),
        (["--top-p", "1.5"], "top_p", 2),
        (["--max-tokens", "0"], "max_tokens", 2),
        (["--seed", "-1"], "seed", 2),
        (["--dtype", "int4"], "dtype", 2),
        (["--block-size", "0"], "block_size", 2),
        (["--num-gpu-blocks-override", "2", "--max-model-len", "512"], "max_model_len", 2),
        (["--prompt", ""], "empty", 2),
        (["--prompt", "word " * 400, "--max-model-len", "128"], "128", 2),
        (["--trace-level", "control"], "trace", 2),
        (["--model", "no-such-model"], "no-such-model", 1),
        (["--model", "tests"], "config.json", 1),
        (["--trace", "LICENSE/run.jsonl"], "LICENSE", 1),
    ],
)
def test_bad_input_is_one_sentence(
    flags: list[str], said: str, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = [] if "--prompt" in flags else ["--prompt", PROMPT]
    assert main([*TINY, *prompt, *flags]) == exit_code
    shown = capsys.readouterr()
    last = shown.err.splitlines()[-1]
    assert last.startswith("orrery generate: ")
    assert said in last
    assert "--debug" not in last
    assert "Traceback" not in shown.err


def test_drafts_are_asked_for_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "run.jsonl"
    config = '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 1}'
    flags = ["--speculative-config", config, "--temperature", "0", "--max-tokens", "20", "--trace", str(trace)]
    assert main(["generate", "--prompt", f"{PROMPT} {PROMPT} {PROMPT}", *flags]) == 0
    assert any(isinstance(event, SpecVerdict) for event in read_trace(trace).events)
    assert main(["trace", str(trace)]) == 0
    assert "tokens per verification" in " ".join(capsys.readouterr().out.split())
    assert main(["generate", "--prompt", PROMPT, "--speculative-config", "{ngram}"]) == 2
    assert "speculative_config must be a JSON object" in capsys.readouterr().err


def test_sampling_flags_reach_the_sampler(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "run.jsonl"
    flags = ["--n", "2", "--presence-penalty", "0.5", "--frequency-penalty", "-0.5", "--repetition-penalty", "1.2"]
    flags += ["--min-tokens", "3", "--ignore-eos", "--logprobs", "2", "--trace", str(trace)]
    assert main(["generate", "--prompt", PROMPT, "--max-tokens", "4", "--seed", "1", *flags]) == 0
    shown = capsys.readouterr().out
    assert "0.0: " in shown
    assert "0.1: " in shown
    assert "1 request, 8 tokens" in shown
    added = [event for event in read_trace(trace).events if isinstance(event, RequestAdded)]
    assert [event.sampling_params.seed for event in added] == [1, 2]
    params = added[0].sampling_params
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.5, -0.5, 1.2)
    assert (params.n, params.min_tokens, params.ignore_eos, params.logprobs) == (2, 3, True, 2)
