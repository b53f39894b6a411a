"""How fast is it, and how fast could it be?"""

from __future__ import annotations

import functools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from scripts.gpu_checks.report import Report, Settings, name_of

if TYPE_CHECKING:
    from scripts.gpu_checks.engine import Engine

#: Shapes of Llama 3.2 1B and Llama 3.1 8B.
LLAMAS: dict[str, dict[str, Any]] = {
    "random-1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "random-8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
}
LLAMA_COMMON = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
    "dtype": "bfloat16",
    "eos_token_id": 128_001,
}


def measure_ceilings(settings: Settings, report: Report) -> None:
    """Bytes per second that a copy reads and writes; operations per second of a square matrix product."""
    size = 1 << (24 if settings.quick else 31)
    source = torch.ones(size, dtype=torch.uint8, device=settings.device)
    target = torch.empty_like(source)
    report.ceilings["copy_bytes_per_s"] = 2 * size / _seconds(lambda: target.copy_(source), settings)
    side = 512 if settings.quick else 8192
    for dtype in (torch.bfloat16, torch.float32):
        # Random numbers: zeros draw less power, and run faster than any model does.
        left, right = (torch.randn(side, side, device=settings.device).to(dtype) for _ in range(2))
        seconds = _seconds(functools.partial(torch.matmul, left, right), settings)
        report.ceilings[f"{name_of(dtype)}_flop_per_s"] = 2 * side**3 / seconds
    for name, value in report.ceilings.items():
        print(f"  {name:22}{value / 1e9:12,.0f} · 10⁹")


def _seconds(work: Callable[[], object], settings: Settings, repeats: int = 10) -> float:
    """Of one run, warmed up."""
    for _ in range(3):
        work()
    settings.synchronize()
    started = time.perf_counter()
    for _ in range(repeats):
        work()
    settings.synchronize()
    return (time.perf_counter() - started) / repeats


def compare_graphs(settings: Settings, report: Report) -> None:
    """Milliseconds of a decode step of orrery-tiny, captured and eager."""
    from scripts.gpu_checks.engine import prompts_of, running

    num_tokens = 8 if settings.quick else 64
    for enforce_eager in (False, True):
        arguments = {"enforce_eager": enforce_eager, "max_model_len": 512, "max_num_seqs": max(settings.batches)}
        with running("orrery-tiny", settings, **arguments) as engine:
            for batch in settings.batches:
                engine.run(prompts_of(batch, 16, 2048), num_tokens)
                row = {"batch": batch, "mode": "eager" if enforce_eager or not settings.cuda else "captured"}
                report.step_times.append({**row, "milliseconds": 1e3 * engine.decode_seconds()})


def of_llama(name: str) -> Callable[[Settings, Report], None]:
    def part(settings: Settings, report: Report) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps({**LLAMA_COMMON, **LLAMAS[name]}), encoding="utf-8")
            measure_throughput(folder, settings, report, name=name, load_format="dummy")

    return part


def measure_throughput(
    model: str, settings: Settings, report: Report, name: str = "orrery-tiny", **engine_args: Any
) -> None:
    """Tokens per second of prompts and of decodes, beside what the device could do."""
    from scripts.gpu_checks.engine import prompts_of, running

    num_prompts, prompt_len = settings.prefill
    limits = {"max_num_batched_tokens": max(256, num_prompts * prompt_len), "max_num_seqs": max(settings.batches)}
    arguments = {"max_model_len": 1024, "cudagraph_capture_sizes": settings.batches, **limits, **engine_args}
    with running(model, settings, **arguments) as engine:
        report.startup[name] = engine.startup()
        work = _Work(engine)
        prompts = prompts_of(num_prompts, prompt_len, engine.facts.vocab_size)
        engine.run(prompts, 1)
        engine.run(prompts, 1)
        num_tokens, _, seconds = engine.steps[0]
        row = {"model": name, "phase": "prefill", "batch": num_prompts, "tokens_per_s": num_tokens / seconds}
        share = work.flop(num_tokens, num_prompts) / seconds / report.ceilings[f"{engine.facts.dtype}_flop_per_s"]
        report.throughput.append({**row, "milliseconds": 1e3 * seconds, "share": share, "of": "matrix product"})
        for batch in settings.batches:
            engine.run(prompts_of(batch, 32, engine.facts.vocab_size), 8 if settings.quick else 64)
            seconds = engine.decode_seconds()
            row = {"model": name, "phase": "decode", "batch": batch, "tokens_per_s": batch / seconds}
            share = work.bytes(batch, 64) / seconds / report.ceilings["copy_bytes_per_s"]
            report.throughput.append({**row, "milliseconds": 1e3 * seconds, "share": share, "of": "bandwidth"})


class _Work:
    """What a step must compute and read at least."""

    def __init__(self, engine: Engine) -> None:
        facts, architecture = engine.facts, engine.executor._worker.decoder.architecture
        self._head = facts.vocab_size * facts.hidden_size
        embedding = 0 if architecture.tie_word_embeddings else self._head
        self._layers = facts.num_parameters - embedding - self._head
        self._itemsize = getattr(torch, facts.dtype).itemsize
        self._kv_bytes = 2 * facts.num_layers * facts.num_kv_heads * facts.head_size * self._itemsize

    def flop(self, num_tokens: int, num_logits: int) -> float:
        """Multiplications and additions of the weights; attention, a few per cent here, is left out."""
        return 2.0 * (self._layers * num_tokens + self._head * num_logits)

    def bytes(self, batch: int, context: int) -> float:
        """All weights once, and the keys and values of every context."""
        return float((self._layers + self._head) * self._itemsize + batch * context * self._kv_bytes)
