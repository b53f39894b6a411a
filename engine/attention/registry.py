"""All attention backends by name, and which of them serves a model."""

from __future__ import annotations

import importlib
import sys
from typing import Any, cast

from engine.attention.backend import AttentionBackend, AttentionSpec
from engine.errors import ConfigError

#: Imported only when looked at: a backend may need a library that is not there.
BACKENDS = {
    "torch": "engine.attention.torch:TorchBackend",
    "cpu": "engine.attention.cpu:CpuBackend",
    "triton": "engine.attention.triton:TritonBackend",
    "flash_attn": "engine.attention.flash_attn:FlashAttnBackend",
    "flashinfer": "engine.attention.flashinfer:FlashInferBackend",
}

#: What `auto` tries, by the type of the device. The first that can serve the model does.
_PREFERRED = {"cuda": ("triton", "torch"), "cpu": ("cpu", "torch")}


def make_backend(asked: str, spec: AttentionSpec) -> AttentionBackend[Any]:
    """The backend that attends for a model.

    Args:
        asked: a name of `BACKENDS`, or `auto`.
        spec: the model's attention.

    Raises:
        ConfigError: the backend asked for cannot serve it; the message names those that can.
    """
    if asked == "auto":
        return _best(spec)
    backend = _load(asked)
    why = backend.why_unavailable(spec)
    if why is not None:
        available = ", ".join(available_backends(spec))
        raise ConfigError(f"attention_backend={asked} cannot be used: {why}; available here: {available}.")
    return cast("AttentionBackend[Any]", backend(spec))


def _best(spec: AttentionSpec) -> AttentionBackend[Any]:
    *faster, everywhere = _PREFERRED[spec.device.type]
    for name in faster:
        why = _load(name).why_unavailable(spec)
        if why is None:
            return cast("AttentionBackend[Any]", _load(name)(spec))
        print(f"Running with attention_backend={everywhere}, which is several times slower: {why}.", file=sys.stderr)
    return cast("AttentionBackend[Any]", _load(everywhere)(spec))


def available_backends(spec: AttentionSpec) -> list[str]:
    """Names of the backends that can serve a model here."""
    return [name for name in BACKENDS if _load(name).why_unavailable(spec) is None]


def _load(name: str) -> Any:
    module, _, symbol = BACKENDS[name].partition(":")
    return getattr(importlib.import_module(module), symbol)
