"""The fuzzer finds what is broken, says the same twice, and finds nothing in the core as it is."""

from __future__ import annotations

import pytest

from sim.fuzz.episode import Arrival, Episode, Setting
from sim.fuzz.situations import Situations
from sim.fuzz.stage import play

#: Episodes that broke something once, as the fuzzer shrank them.
MENDED = {
    "a late token of a request that was resumed and preempted again": Episode(
        seed=3943786419,
        setting=Setting(block_size=3, max_model_len=42, enable_prefix_caching=False, steps_in_flight=5),
        arrivals=(
            Arrival(tick=0, request_id="a", prompt=(11,), max_tokens=16),
            Arrival(tick=0, request_id="b", prompt=(11, 25, 42, 13, 40, 30, 23, 12, 22, 15, 40, 8), max_tokens=14),
        ),
    ),
    "a block evicted and registered again under the same hash while its first step is in flight": Episode(
        seed=173879092,
        setting=Setting(max_model_len=38, steps_in_flight=3),
        arrivals=(
            Arrival(tick=0, request_id="a", prompt=(11,), max_tokens=1),
            Arrival(tick=0, request_id="b", prompt=(11,), max_tokens=2),
            Arrival(
                tick=0,
                request_id="c",
                prompt=(
                    *(11, 13, 23, 9, 28, 19, 8, 33, 42, 43, 40, 15, 12, 27, 43, 8),
                    *(40, 41, 41, 6, 44, 11, 36, 37, 41, 18, 12, 7, 39, 19, 41, 37),
                ),
                max_tokens=2,
            ),
        ),
    ),
    "blocks of a request aborted in flight, computed behind a forward pass that failed": Episode(
        seed=121751464,
        setting=Setting(max_model_len=30, num_spare_blocks=4, max_num_batched_tokens=3, steps_in_flight=3),
        arrivals=(
            Arrival(
                tick=0,
                request_id="a",
                prompt=(
                    *(28, 36, 37, 34, 20, 5, 11, 17, 37, 42, 24, 8, 43, 12),
                    *(36, 23, 38, 11, 23, 44, 43, 36, 31, 28, 14, 22, 17),
                ),
                max_tokens=1,
            ),
            Arrival(tick=0, request_id="b", prompt=(44, 32, 44, 13), max_tokens=1),
            Arrival(tick=11, request_id="b", prompt=(44, 32, 44, 13, 44), max_tokens=1, takes_over=True),
        ),
        failures=(10,),
    ),
    "a request preempted and resumed behind a forward pass that failed": Episode(
        seed=982526257,
        setting=Setting(block_size=8, max_model_len=37, max_num_batched_tokens=8, steps_in_flight=5),
        arrivals=(
            Arrival(
                tick=0,
                request_id="a",
                prompt=(
                    *(18, 38, 35, 16, 42, 36, 29, 28, 9, 6, 30, 24, 10, 20, 24, 14, 13),
                    *(14, 41, 22, 31, 40, 18, 21, 13, 15, 27, 19, 29, 38, 12, 34, 30),
                ),
                max_tokens=1,
                grammar_after=8,
            ),
            Arrival(tick=5, request_id="b", prompt=(18,), max_tokens=5),
        ),
        failures=(10,),
    ),
}


@pytest.mark.parametrize("episode", MENDED.values(), ids=MENDED)
def test_what_broke_once_holds(episode: Episode) -> None:
    assert play(episode, Situations(), record=True).violation is None
