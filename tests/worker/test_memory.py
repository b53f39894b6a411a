"""How the pool is sized, and every way in which it, the dtype, the length or the device can be refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from engine.config import EngineConfig
from engine.errors import ConfigError, ModelError
from engine.executor.uniproc import UniProcExecutor
from engine.models.architecture import read_architecture
from engine.worker import load_decoder, memory
from engine.worker.kv_cache import CacheShape, cache_budget, resolve_num_blocks
from engine.worker.memory import GIB, Memory, device_memory, gib
from engine.worker.placement import require_room_for_weights, resolve_device, resolve_dtype, resolve_max_model_len

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
SHAPE = CacheShape(block_size=16, sliding_windows=(None, None), num_kv_heads=4, head_size=8, dtype=torch.float32)
RandomModel = tuple[Path, transformers.PreTrainedModel]


def config_of(**engine_args: object) -> EngineConfig:
    return EngineConfig.from_args("m", **engine_args)


def test_a_block_takes_what_the_formula_says() -> None:
    assert SHAPE.block_bytes == 2 * 16 * 4 * 8 * 4 * 2


def test_budget_on_a_cpu_is_modest() -> None:
    config = config_of()
    assert cache_budget(config, Memory(64 * GIB, 32 * GIB), CPU, 0) == GIB
    assert cache_budget(config, Memory(64 * GIB, 1 * GIB), CPU, GIB // 2) == GIB // 4
    assert cache_budget(config, Memory(64 * GIB, 1 * GIB), CPU, 2 * GIB) == 0


def test_budget_on_a_gpu_is_the_share_less_what_is_taken() -> None:
    config = config_of(gpu_memory_utilization=0.75)
    assert cache_budget(config, Memory(80 * GIB, 60 * GIB), CUDA, 2 * GIB) == 38 * GIB
    assert cache_budget(config, Memory(80 * GIB, 10 * GIB), CUDA, 2 * GIB) == 0


def test_bytes_asked_for_are_taken_at_their_word_if_they_are_there() -> None:
    config = config_of(kv_cache_memory_bytes=3 * GIB)
    assert cache_budget(config, Memory(8 * GIB, 4 * GIB), CPU, GIB) == 3 * GIB
    with pytest.raises(ConfigError, match=r"kv_cache_memory_bytes=3221225472 \(3\.00 GiB\) does not fit: 2\.00 GiB"):
        cache_budget(config, Memory(8 * GIB, 3 * GIB), CPU, GIB)


def test_the_pool_is_no_larger_than_all_requests_could_fill() -> None:
    config = config_of(max_num_seqs=3)
    assert resolve_num_blocks(config, SHAPE, 40, Memory(GIB, GIB), GIB, 0) == 3 * 3 + 1
    assert resolve_num_blocks(config, SHAPE, 40, Memory(GIB, GIB), 5 * SHAPE.block_bytes, 0) == 5


def test_a_window_asks_for_no_more_than_it_sees() -> None:
    config = config_of(max_num_seqs=3, max_num_batched_tokens=64)
    windowed = SHAPE._replace(sliding_windows=(33, 33))
    # 32 tokens behind the first of 64 new ones, in blocks of 16, and one block more where the window begins inside one.
    assert resolve_num_blocks(config, windowed, 1000, Memory(GIB, GIB), GIB, 0) == 3 * 7 + 1
    assert resolve_num_blocks(config, windowed, 40, Memory(GIB, GIB), GIB, 0) == 3 * 3 + 1
    with pytest.raises(ConfigError, match=r"\(7 blocks and the null block\).* lower max_model_len to 96 or less"):
        resolve_num_blocks(config, windowed, 1000, Memory(GIB, GIB), 7 * SHAPE.block_bytes, 0)


def test_groups_draw_on_one_pool() -> None:
    config = config_of(max_num_seqs=1, max_num_batched_tokens=64)
    hybrid = SHAPE._replace(sliding_windows=(None, 33, None, 33))
    assert [(group.kind, group.layers) for group in hybrid.groups] == [
        ("full_attention", (0, 2)),
        ("sliding_window", (1, 3)),
    ]
    assert {group.block_bytes for group in hybrid.groups} == {SHAPE.block_bytes}
    assert resolve_num_blocks(config, hybrid, 1000, Memory(GIB, GIB), GIB, 0) == 63 + 7 + 1


def test_a_pool_too_small_for_one_request_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"max_model_len=65 .* \(5 blocks and the null .* lower max_model_len to 64 "):
        resolve_num_blocks(config_of(), SHAPE, 65, Memory(GIB, GIB), 5 * SHAPE.block_bytes, 0)


def test_an_override_stands_above_the_budget_but_must_fit() -> None:
    left = Memory(GIB, 100 * SHAPE.block_bytes)
    assert resolve_num_blocks(config_of(num_gpu_blocks_override=100), SHAPE, 40, left, 0, 0) == 100
    with pytest.raises(ConfigError, match=r"num_gpu_blocks_override=100 needs .* at most 99 blocks fit"):
        resolve_num_blocks(config_of(num_gpu_blocks_override=100), SHAPE, 40, left, 0, SHAPE.block_bytes)


def test_start_up_refuses_a_pool_in_which_one_request_cannot_fit(random_llama: RandomModel) -> None:
    for arguments in ({"num_gpu_blocks_override": 16}, {"kv_cache_memory_bytes": 100_000}):
        executor = UniProcExecutor(EngineConfig.from_args(str(random_llama[0]), **arguments))
        with pytest.raises(ConfigError, match="One request of max_model_len=256"):
            executor.initialize()


def test_start_up_finds_out_what_was_left_open(random_llama: RandomModel) -> None:
    folder, model = random_llama
    executor = UniProcExecutor(EngineConfig.from_args(str(folder), max_num_seqs=2, device="cpu"))
    facts, kv_cache = executor.initialize()
    assert executor.model_path == folder
    assert executor.device == "cpu"
    assert facts.dtype == "float32"
    assert facts.max_model_len == 256
    assert facts.num_parameters == model.num_parameters()
    assert facts.eos_token_ids == (2,)
    assert kv_cache.num_gpu_blocks == 2 * 16 + 1
    assert [group.kind for group in kv_cache.groups] == ["full_attention"]
    assert kv_cache.groups[0].block_bytes == 2 * 16 * 2 * 16 * 4 * 3


def test_dummy_weights_are_the_same_in_every_run_and_need_no_checkpoint(
    random_llama: RandomModel, tmp_path: Path
) -> None:
    shutil.copy(random_llama[0] / "config.json", tmp_path)
    logits = []
    for _ in range(2):
        config = EngineConfig.from_args(
            str(tmp_path), load_format="dummy", device="cpu", attention_backend="torch", max_num_seqs=2
        )
        executor = UniProcExecutor(config)
        executor.initialize()
        decoder = executor._worker.decoder
        logits.append(decoder.compute_logits(torch.ones(1, decoder.architecture.hidden_size)))
    assert torch.equal(*logits)
    assert 0.01 < float(logits[0].std()) < 1.0


def test_dtype_follows_the_device_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_dtype("auto", "bfloat16", CPU) is torch.float32
    assert resolve_dtype("bfloat16", "float32", CPU) is torch.bfloat16
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda _: True)
    assert resolve_dtype("auto", "bfloat16", CUDA) is torch.bfloat16
    assert resolve_dtype("auto", "float16", CUDA) is torch.float16
    with pytest.raises(ModelError, match="dtype float8_e4m3fn are not supported"):
        resolve_dtype("auto", "float8_e4m3fn", CUDA)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda _: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    with pytest.raises(ConfigError, match="Tesla T4 has no bfloat16"):
        resolve_dtype("auto", "bfloat16", CUDA)


def test_device_follows_the_machine_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == CUDA
    assert resolve_device("cpu") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == CPU
    with pytest.raises(ConfigError, match="finds no CUDA device"):
        resolve_device("cuda")


def test_a_length_beyond_the_models_is_refused(random_llama: RandomModel) -> None:
    architecture = read_architecture(random_llama[0])
    assert resolve_max_model_len(None, architecture) == 256
    assert resolve_max_model_len(100, architecture) == 100
    with pytest.raises(ConfigError, match="max_model_len=257 is more than the 256 positions"):
        resolve_max_model_len(257, architecture)


def test_weights_that_do_not_fit_are_refused_before_they_are_loaded(
    random_llama: RandomModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match=r"The weights take 372529\.03 GiB \(100,000,000,000,000 param"):
        require_room_for_weights(10**14, torch.float32, CPU)
    monkeypatch.setattr(load_decoder, "load_weights", lambda *_, **__: pytest.fail("loaded"))
    monkeypatch.setattr("engine.worker.placement.device_memory", lambda _: Memory(GIB, 100_000))
    with pytest.raises(
        ModelError, match=r"parameters in float32\), but only 0\.1 MiB of 1\.00 GiB are available on cpu"
    ):
        UniProcExecutor(EngineConfig.from_args(str(random_llama[0]), device="cpu")).initialize()


def test_host_memory_is_what_the_control_group_leaves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = device_memory(CPU)
    assert 0 < whole.available <= whole.total
    (tmp_path / "memory.max").write_text(f"{GIB}\n")
    (tmp_path / "memory.current").write_text(str(GIB // 2))
    (tmp_path / "memory.stat").write_text(f"anon 1\nactive_file {GIB // 8}\ninactive_file {GIB // 8}\n")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert device_memory(CPU) == Memory(GIB, 3 * GIB // 4)


def test_the_peak_of_work_is_seen() -> None:
    # In a process of its own: what other tests leave behind, and give back meanwhile, would be counted against it.
    work = "lambda: torch.ones(64 << 20, dtype=torch.uint8)"
    code = f"import torch; from engine.worker.memory import peak_bytes; print(peak_bytes({work}, torch.device('cpu')))"
    peak = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert 60 << 20 < int(peak) < 80 << 20


def test_bytes_are_written_for_people() -> None:
    assert gib(5 * GIB // 4) == "1.25 GiB"
    assert gib(3 << 20) == "3.0 MiB"
