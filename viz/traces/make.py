"""Records the traces of the gallery anew: `python -m viz.traces.make [NAME …]`.

Each is a recipe for orrery-tiny with a pool and a budget so small that the situation must come about.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.sampling_params import GuidedDecodingParams, SamplingParams
from viz.gallery import GALLERY
from viz.live import Arrival, Recipe, run

_HERE = Path(__file__).parent

_SEA = (
    "Once upon a time, in a small town by the sea, there lived an old man who kept the lighthouse. Every evening he"
    " climbed the stairs, lit the great lamp, and wrote in his log what the wind and the water had done that day."
)
_STORM = "One night the wind grew strong and the rain beat on the windows."
_BOAT = "In the morning a little boat came in with the tide, and in it sat a girl."
_MOON = '"Where does the moon go in the morning?" asked Max.'
_CLOCK = "The old clock in the tower had stopped, and nobody in Copperhill knew why."
_GIRL = {
    "type": "object",
    "properties": {"age": {"enum": [7, 8, 9]}, "happy": {"type": "boolean"}},
    "required": ["age", "happy"],
    "additionalProperties": False,
}
_BAKER = "The baker had a cat, a donkey and a very old clock."


def _request(
    prompt: str, max_tokens: int, after_step: int = 0, temperature: float = 0.5, seed: int = 7, priority: int = 0
) -> Arrival:
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed, ignore_eos=True)
    return Arrival(prompt=prompt, sampling_params=params, after_step=after_step, priority=priority)


def _guided(prompt: str, max_tokens: int, after_step: int = 0, priority: int = 0, **grammar: Any) -> Arrival:
    params = SamplingParams(
        max_tokens=max_tokens, temperature=0.7, seed=11, guided_decoding=GuidedDecodingParams(**grammar)
    )
    return Arrival(prompt=prompt, sampling_params=params, after_step=after_step, priority=priority)


def _recipe(*arrivals: Arrival, seconds_per_step: float = 0.0, **engine_args: Any) -> Recipe:
    small = {"num_gpu_blocks_override": 64, "max_model_len": 256, "max_num_batched_tokens": 64, "max_num_seqs": 8}
    everything = small | {"device": "cpu", "dtype": "float32"} | engine_args
    return Recipe(arrivals=arrivals, engine_args=everything, seconds_per_step=seconds_per_step)


RECIPES = {
    "first-token": _recipe(_request(_MOON, 12, temperature=0.0)),
    "mixed-batch": _recipe(
        _request(_SEA, 20),
        _request(_MOON, 18, after_step=1),
        _request(_CLOCK, 16, after_step=3),
        _request(_BAKER, 14, after_step=6),
        max_num_batched_tokens=48,
    ),
    "prefix-hit": _recipe(
        _request(f"{_SEA} {_STORM}", 26),
        _request(_CLOCK, 22, after_step=1),
        _request(f"{_SEA} {_BOAT}", 20, after_step=9),
        _request(_MOON, 16, after_step=9),
        _request(_BAKER, 14, after_step=9),
        _request(f"{_SEA} {_BOAT} She said: I come from the north.", 16, after_step=18),
        max_num_batched_tokens=32,
        max_num_seqs=4,
    ),
    "chunked-prefill": _recipe(
        _request(_MOON, 30),
        _request(_BAKER, 28),
        _request(f"{_SEA} {_STORM} {_BOAT} {_CLOCK}", 12, after_step=3),
        long_prefill_token_threshold=24,
    ),
    "eviction": _recipe(
        _request(f"{_SEA} {_STORM}", 8),
        _request(f"{_CLOCK} {_BOAT} She came from the north.", 12, after_step=9),
        _request(f"{_BAKER} {_MOON} The night was long and cold.", 12, after_step=16),
        _request(f"{_SEA} {_BOAT}", 10, after_step=26),
        num_gpu_blocks_override=12,
        max_model_len=128,
        max_num_seqs=2,
    ),
    "preemption": _recipe(
        _request(_CLOCK, 46),
        _request(_MOON, 48, after_step=1),
        _request(_BAKER, 40, after_step=2),
        _request(_STORM, 24, after_step=4),
        num_gpu_blocks_override=11,
        max_model_len=128,
    ),
    "head-of-line": _recipe(
        _request(_MOON, 16),
        _request(f"{_SEA} {_STORM} {_BOAT} {_CLOCK} {_BAKER}", 6, after_step=3),
        _request(_BAKER, 14, after_step=3),
        _request(_STORM, 14, after_step=4),
        max_num_batched_tokens=127,
    ),
    "fsm-choice": _recipe(
        _guided("Max was very happy.", 12, choice=["Positive", "Negative"]),
        trace_level="full",
    ),
    "json-schema": _recipe(
        _guided(f"{_BOAT} The girl:", 40, json=_GIRL),
        _request(_BAKER, 12, after_step=2),
        trace_level="full",
    ),
    "spec-ngram": _recipe(
        _request(f'{_MOON} "I am sure," said Noah. {_MOON}', 24, temperature=0.0),
        _request(_MOON, 16, after_step=2, temperature=0.0),
        speculative_config={
            "method": "ngram",
            "num_speculative_tokens": 3,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 3,
        },
        trace_level="full",
    ),
    "spec-draft": _recipe(
        _request(_BOAT, 22, temperature=0.8),
        _request(_MOON, 18, after_step=2, temperature=0.8),
        speculative_config={"method": "draft_model", "model": "orrery-tiny-draft", "num_speculative_tokens": 3},
        trace_level="full",
    ),
    "crowded": _recipe(
        _guided("Max was very happy.", 12, priority=1, choice=["Positive", "Negative"]),
        _request(f"{_SEA} {_STORM}", 24, temperature=0.8),
        _request(_MOON, 26, after_step=1, temperature=0.8, priority=2),
        _guided(f"{_BOAT} The girl:", 24, after_step=3, priority=1, json=_GIRL),
        _request(f"{_SEA} {_BOAT}", 14, after_step=5, temperature=0.8),
        _request(_BAKER, 14, after_step=6, temperature=0.8, priority=3),
        num_gpu_blocks_override=13,
        max_model_len=128,
        max_num_batched_tokens=32,
        max_num_seqs=5,
        long_prefill_token_threshold=24,
        policy="priority",
        speculative_config={"method": "draft_model", "model": "orrery-tiny-draft", "num_speculative_tokens": 2},
        trace_level="full",
        seconds_per_step=0.2,  # so that the grammars, compiled meanwhile, are ready after a few steps
    ),
}


def main(names: Sequence[str]) -> None:
    """Record the traces of those names, or all of them."""
    for name in names or [situation.name for situation in GALLERY]:
        run(RECIPES[name], _HERE / f"{name}.jsonl")


if __name__ == "__main__":
    main(sys.argv[1:])
