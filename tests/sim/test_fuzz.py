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
}


@pytest.mark.parametrize("episode", MENDED.values(), ids=MENDED)
def test_what_broke_once_holds(episode: Episode) -> None:
    assert play(episode, Situations(), record=True).violation is None
