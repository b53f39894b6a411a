"""The engine: a vLLM-class LLM inference engine whose every decision is recorded.

::

    from engine import LLM, SamplingParams

    llm = LLM(model="orrery-tiny", trace="run.jsonl")
    for output in llm.generate(["Once upon a time"], SamplingParams(temperature=0.0)):
        print(output.outputs[0].text)

A prompt travels one way: `frontend` (text → request), `core` (what runs next, and in which blocks), `executor` and
`worker` (the forward pass), and back through `frontend`; a `loop` turns the crank and `trace` writes down what
happened. The names below are imported when they are first used, so that `engine.core` and `engine.trace` load in a
blink and without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.guided_decoding import GuidedDecodingParams as GuidedDecodingParams
    from engine.llm import LLM as LLM
    from engine.llm_engine import LLMEngine as LLMEngine
    from engine.sampling_params import SamplingParams as SamplingParams

    __version__: str

_HOME = {
    "GuidedDecodingParams": "engine.guided_decoding",
    "LLM": "engine.llm",
    "LLMEngine": "engine.llm_engine",
    "SamplingParams": "engine.sampling_params",
}

__all__ = ["LLM", "GuidedDecodingParams", "LLMEngine", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("llm-orrery")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
