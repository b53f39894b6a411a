"""Who is compared, and with which settings: this engine and its peers, each as fast as its documentation makes it.

All of them get the same model, the same limits and the same number of threads. The peers other than `transformers` are
installed by `python -m engine.bench.install_peers` into a folder of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

#: Where `make bench-peers` puts the peers.
PEERS = Path(".bench")

_MAX_MODEL_LEN = 1024
_MAX_NUM_SEQS = 64
_LIMITS = {
    "max_model_len": _MAX_MODEL_LEN,
    "max_num_seqs": _MAX_NUM_SEQS,
    "max_num_batched_tokens": 4096,
    "enable_prefix_caching": False,
}
_KV_CACHE_GIB = 1
_DTYPES = {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16"}
_BYTES = {"bf16": 2.0, "fp32": 4.0, "f32": 4.0, "fp16": 2.0}

_OURS = Path(sys.executable)
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class Contender(NamedTuple):
    """An engine with its settings."""

    engine: str
    """Its name, alike for all its contenders."""
    variant: str
    """What sets it apart from the others of its engine: the weights, and how it runs them."""
    bytes_per_weight: float | None
    """Of the weights in memory; None: it depends on the matrix."""
    python: Path
    driver: str
    settings: Mapping[str, Any]
    environment: Mapping[str, str]
    needs: tuple[Path, ...] = ()
    """Files without which it cannot run."""

    @property
    def name(self) -> str:
        """As it stands in tables."""
        return f"{self.engine} {self.variant}"

    @property
    def missing(self) -> str | None:
        """Why it cannot run, if something is not installed."""
        absent = next((path for path in self.needs if not path.exists()), None)
        return None if absent is None else f"{absent} is not there; `make bench-peers` brings it."


def all_contenders(model: str, folder: Path, threads: int) -> list[Contender]:
    """Every contender, this engine first.

    Args:
        model: as this engine knows it.
        folder: the model in Hugging Face format, for the peers.
        threads: for each; they are also the cores that vLLM is bound to.
    """
    return [
        *(_orrery(model, threads, variant) for variant in ("bf16", "fp32", "int8", "int4")),
        *(_vllm(folder, threads, weights, compiled=False) for weights in ("bf16", "fp32")),
        *(_vllm(folder, threads, weights, compiled=True) for weights in ("bf16", "fp32", "fp16")),
        *(_llama_cpp(folder, threads, file) for file in ("bf16", "f32", "q4_1")),
        *(_transformers(folder, threads, weights) for weights in ("bf16", "fp32")),
    ]


def _orrery(model: str, threads: int, variant: str) -> Contender:
    dtype = "float32" if variant == "fp32" else "bfloat16"
    settings = {"model": model, "dtype": dtype, "kv_cache_memory_bytes": _KV_CACHE_GIB << 30, **_LIMITS}
    if variant.startswith("int"):
        settings["quantization"] = variant
    return Contender("Orrery", variant, _BYTES.get(variant), _OURS, "orrery_engine", settings, _threads(threads))


def _transformers(folder: Path, threads: int, weights: str) -> Contender:
    settings = {"model": str(folder), "dtype": _DTYPES[weights]}
    return Contender("transformers", weights, _BYTES[weights], _OURS, "hf_generate", settings, _threads(threads))


def _vllm(folder: Path, threads: int, weights: str, *, compiled: bool) -> Contender:
    """vLLM's guide for CPUs: threads bound to cores, tcmalloc and Intel's OpenMP loaded before everything else."""
    python = PEERS / "vllm/bin/python"
    preloaded = (PEERS / "tcmalloc/libtcmalloc_minimal.so.4", PEERS / "vllm/lib/libiomp5.so")
    settings = {"model": str(folder), "dtype": _DTYPES[weights], "enforce_eager": not compiled, **_LIMITS}
    environment = {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_CPU_KVCACHE_SPACE": str(_KV_CACHE_GIB),
        "VLLM_NO_USAGE_STATS": "1",
        "LD_PRELOAD": ":".join(str(path.absolute()) for path in preloaded if path.exists()),
        **_OFFLINE,
    }
    variant = f"{weights} {'compiled' if compiled else 'eager'}"
    return Contender("vLLM", variant, _BYTES[weights], python.absolute(), "vllm_cpu", settings, environment, (python,))


def _llama_cpp(folder: Path, threads: int, file: str) -> Contender:
    server, model = PEERS / "llama.cpp/llama-server", PEERS / f"llama.cpp/{folder.name}-{file}.gguf"
    settings = {
        "server": str(server.absolute()),
        "model": str(model.absolute()),
        "threads": threads,
        "slots": _MAX_NUM_SEQS,
        "max_model_len": _MAX_MODEL_LEN,
    }
    return Contender("llama.cpp", file, _BYTES.get(file), _OURS, "llama_cpp", settings, {}, (server, model))


def _threads(count: int) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(count), **_OFFLINE}
