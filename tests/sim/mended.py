"""Episodes that broke something once, as the fuzzer shrank them."""

from __future__ import annotations

from sim.fuzz.episode import Arrival, Episode, Setting

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
    "KV loaded from elsewhere into a block that a step in flight still writes for its last owner": Episode(
        seed=2241071399,
        setting=Setting(
            block_size=3, max_model_len=43, enable_prefix_caching=False, steps_in_flight=4, kv_connector=True
        ),
        arrivals=(
            Arrival(tick=0, request_id="a", prompt=(28,), max_tokens=1),
            Arrival(tick=0, request_id="b", prompt=(15,), max_tokens=1),
            Arrival(tick=0, request_id="c", prompt=(28,), max_tokens=1),
            Arrival(tick=0, request_id="d", prompt=(15,), max_tokens=1),
            Arrival(
                tick=0,
                request_id="e",
                prompt=(15, 41, 40, 13, 21, 26, 44, 23, 10, 36, 40, 20, 39, 40, 5, 12, 43, 28, 24),
            ),
            Arrival(
                tick=0,
                request_id="f",
                prompt=(15, 41, 40, 13, 21, 26, 44, 23, 10, 36, 40, 20, 39, 40, 43, 11, 6, 17, 35, 40, 38, 18, 5),
                max_tokens=1,
                num_remote_tokens=38,
                remote_after=0,
            ),
        ),
        failures=(126,),
    ),
}
