"""Records the traces of the gallery anew: `python -m viz.traces.make [NAME …]`.

Each is a recipe for orrery-tiny with a pool and a budget so small that the situation must come about.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.sampling_params import SamplingParams
from viz.gallery import GALLERY
from viz.live import Arrival, Recipe, run

_HERE = Path(__file__).parent

_SEA = (
    "Once upon a time, in a small village by the sea, there lived an old man who kept the light. Every evening he"
    " climbed the stairs, lit the great lamp, and wrote in his log what the wind and the water had done that day."
)
_STORM = "One night the wind grew strong and the rain beat on the windows."
_BOAT = "In the morning a little boat came in with the tide, and in it sat a girl."
_FOX = "The fox looked at the moon and said to the owl:"
_KING = "A long time ago there was a king who had three daughters, and the youngest of them"
_MILLER = "The miller had a cat, a donkey and a very old clock."


def _request(prompt: str, max_tokens: int, after_step: int = 0, temperature: float = 0.5, seed: int = 7) -> Arrival:
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed, ignore_eos=True)
    return Arrival(prompt=prompt, sampling_params=params, after_step=after_step)


def _recipe(*arrivals: Arrival, **engine_args: Any) -> Recipe:
    small = {"num_gpu_blocks_override": 64, "max_model_len": 256, "max_num_batched_tokens": 64, "max_num_seqs": 8}
    return Recipe(arrivals=arrivals, engine_args=small | {"device": "cpu", "dtype": "float32"} | engine_args)


RECIPES = {
    "first-token": _recipe(_request(_FOX, 12, temperature=0.0)),
    "mixed-batch": _recipe(
        _request(_SEA, 20),
        _request(_FOX, 18, after_step=1),
        _request(_KING, 16, after_step=3),
        _request(_MILLER, 14, after_step=6),
        max_num_batched_tokens=48,
    ),
    "prefix-hit": _recipe(
        _request(f"{_SEA} {_STORM}", 26),
        _request(_KING, 22, after_step=1),
        _request(f"{_SEA} {_BOAT}", 20, after_step=9),
        _request(_FOX, 16, after_step=9),
        _request(_MILLER, 14, after_step=9),
        _request(f"{_SEA} {_BOAT} She said: I come from the north.", 16, after_step=18),
        max_num_batched_tokens=32,
        max_num_seqs=4,
    ),
    "chunked-prefill": _recipe(
        _request(_FOX, 30),
        _request(_MILLER, 28),
        _request(f"{_SEA} {_STORM} {_BOAT} {_KING} sailed away.", 12, after_step=3),
        long_prefill_token_threshold=24,
    ),
    "eviction": _recipe(
        _request(f"{_SEA} {_STORM}", 8),
        _request(f"{_KING} loved the sea. {_BOAT}", 12, after_step=9),
        _request(f"{_MILLER} {_FOX} I am hungry, and the night is long and cold.", 12, after_step=16),
        _request(f"{_SEA} {_BOAT}", 10, after_step=26),
        num_gpu_blocks_override=12,
        max_model_len=128,
        max_num_seqs=2,
    ),
    "preemption": _recipe(
        _request(_KING, 46),
        _request(_FOX, 48, after_step=1),
        _request(_MILLER, 40, after_step=2),
        _request(_STORM, 24, after_step=4),
        num_gpu_blocks_override=11,
        max_model_len=128,
    ),
}


def main(names: Sequence[str]) -> None:
    """Record the traces of those names, or all of them."""
    for name in names or [situation.name for situation in GALLERY]:
        run(RECIPES[name], _HERE / f"{name}.jsonl")


if __name__ == "__main__":
    main(sys.argv[1:])
