"""`orrery bench latency` and `orrery bench throughput`: vLLM's lines and keys, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from engine.cli import main
from engine.trace.events import RequestAdded
from engine.trace.file import read_trace

LATENCY = ["bench", "latency", "--input-len", "8", "--output-len", "4", "--batch-size", "3", "--num-iters-warmup", "1"]


def test_latency_reports_what_vllm_reports(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file, trace = tmp_path / "latency.json", tmp_path / "run.jsonl"
    flags = ["--num-iters", "5", "--n", "2", "--output-json", str(file), "--trace", str(trace), "--max-num-seqs", "4"]
    assert main([*LATENCY, *flags]) == 0
    result = json.loads(file.read_text())
    assert list(result) == ["model_id", "avg_latency", "latencies", "percentiles"]
    assert len(result["latencies"]) == 5
    assert list(result["percentiles"]) == ["10", "25", "50", "75", "90", "99"]
    assert result["percentiles"]["50"] == sorted(result["latencies"])[2]
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"Avg latency: {result['avg_latency']} seconds"
    assert shown[1] == f"10% percentile latency: {result['percentiles']['10']} seconds"
    recorded = read_trace(trace)
    assert recorded.header.config.scheduler.max_num_seqs == 4
    assert not recorded.header.config.cache.enable_prefix_caching
    added = [event for event in recorded.events if isinstance(event, RequestAdded)]
    assert len(added) == (1 + 5) * 3 * 2
    assert all(len(event.prompt_token_ids) == 8 for event in added)


def throughput(folder: Path, *flags: str) -> dict[str, float]:
    file = folder / "throughput.json"
    assert main(["bench", "throughput", "--output-json", str(file), *flags]) == 0
    result: dict[str, float] = json.loads(file.read_text())
    assert list(result) == [
        "model_id", "elapsed_time", "num_requests", "total_num_tokens", "requests_per_second", "tokens_per_second",
    ]  # fmt: skip
    return result


def test_throughput_of_random_prompts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ["--input-len", "16", "--output-len", "4", "--num-prompts", "6", "--prefix-len", "2", "--n", "2"]
    result = throughput(tmp_path, *flags, "--num-warmups", "2", "--disable-detokenize")
    assert result["num_requests"] == 6
    assert result["total_num_tokens"] == 6 * (18 + 2 * 4)
    assert result["tokens_per_second"] == pytest.approx(result["total_num_tokens"] / result["elapsed_time"])
    shown = capsys.readouterr().out
    assert re.search(r"^Throughput: [\d.]+ requests/s, [\d.]+ total tokens/s, [\d.]+ output tokens/s$", shown, re.M)
    assert "Total num prompt tokens:  108\nTotal num output tokens:  48\n" in shown


def test_metrics_of_the_measured_requests_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ["--input-len", "16", "--output-len", "4", "--num-prompts", "5", "--num-warmups", "2"]
    throughput(tmp_path, *flags, "--metrics")
    lines = [line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    shown = {words[0].strip(): words[1] for words in lines if len(words) == 2}
    assert shown["requests completed"] == "5"
    assert {"TTFT median, ms", "ITL p99, ms", "prefix cache hit rate", "KV cache use, most"} <= shown.keys()


def test_throughput_of_a_workload_of_token_ids(tmp_path: Path) -> None:
    file = tmp_path / "ids.json"
    file.write_text(json.dumps({"a": [{"prompt": [5, 6, 7], "out": 2}] * 3, "b": [{"prompt": [9], "out": 5}]}))
    flags = ["--dataset-name", "token-ids", "--dataset-path", str(file)]
    assert throughput(tmp_path, *flags, "--workload", "a")["total_num_tokens"] == 3 * (3 + 2)
    assert throughput(tmp_path, *flags, "--workload", "b", "--num-prompts", "2")["total_num_tokens"] == 2 * (1 + 5)


def test_throughput_of_files_of_text(tmp_path: Path) -> None:
    custom = tmp_path / "prompts.jsonl"
    custom.write_text(
        '{"prompt": "Once upon a time", "output_tokens": 3}\n{"prompt": "The moon", "output_tokens": 4}\n'
    )
    flags = ["--dataset-name", "custom", "--dataset-path", str(custom), "--skip-chat-template"]
    assert throughput(tmp_path, *flags, "--no-oversample")["num_requests"] == 2
    turns = [{"from": "human", "value": "Tell me of the stars in the sky."}, {"from": "gpt", "value": "They shine."}]
    sharegpt = tmp_path / "sharegpt.json"
    sharegpt.write_text(json.dumps([{"conversations": turns}]))
    chosen = throughput(tmp_path, "--dataset-path", str(sharegpt), "--num-prompts", "3", "--output-len", "2")
    assert chosen["num_requests"] == 3


def test_throughput_of_the_lengths_of_a_trace(tmp_path: Path) -> None:
    file = tmp_path / "mooncake.jsonl"
    line = {"timestamp": 5, "input_length": 20, "output_length": 3, "hash_ids": [7]}
    file.write_text(f"{json.dumps(line)}\n" * 2)
    flags = ["--dataset-name", "mooncake", "--dataset-path", str(file), "--num-prompts", "3"]
    assert throughput(tmp_path, *flags)["total_num_tokens"] == 3 * (20 + 3)


@pytest.mark.parametrize(
    ("flags", "said", "exit_code"),
    [
        (["throughput", "--dataset-name", "imagenet"], "random, sharegpt, custom, token-ids", 2),
        (["throughput", "--dataset-name", "custom"], "--dataset-path", 2),
        (["throughput", "--output-len", "0"], "output_len", 2),
        (["throughput", "--dataset-path", "no-such.json"], "no-such.json", 1),
        (["throughput", "--dataset-path", "LICENSE"], "LICENSE, line 2", 1),
        (["throughput", "--dataset-name", "custom", "--dataset-path", "LICENSE"], "LICENSE, line 2", 1),
        (["throughput", "--num-prompts", "0"], "--num-prompts", 2),
        (["throughput", "--random-range-ratio", "1"], "range ratio", 1),
        (
            ["latency", "--output-json", "no-such/result.json"],
            "output_json must be a file in a folder that is there",
            2,
        ),
        (["throughput", "--output-json", "."], "output_json must be a file in a folder that is there", 2),
        (["latency", "--input-len", "0"], "at least one token", 1),
        (["latency", "--batch-size", "0"], "--batch-size", 2),
        (["latency", "--block-size", "0"], "block_size", 2),
        (["latency", "--output-len", "5000"], "32 prompt tokens and asks for 5000 more", 2),
        (["throughput", "--num-prompts", "2", "--max-model-len", "64"], "max_model_len is 64", 2),
    ],
)
def test_what_is_refused(flags: list[str], said: str, exit_code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *flags]) == exit_code
    shown = capsys.readouterr().err.strip()
    assert said in shown
    assert "Traceback" not in shown


def test_the_names_of_workloads_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--dataset-name", "token-ids", "--dataset-path", "engine/bench/workloads.json"]
    assert main(["bench", "throughput", *flags]) == 1
    assert "dec1, dec8, dec32, pre8, mix64, warm" in capsys.readouterr().err
