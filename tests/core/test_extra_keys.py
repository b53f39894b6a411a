"""What enters a block's hash beside its tokens, and what that keeps apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.core.kv_cache.block_hash import hash_request_tokens, none_hash_for
from engine.core.kv_cache.extra_keys import extra_keys_of_block
from engine.inputs import LoRARequest, MultiModalFeature
from engine.trace.file import read_trace
from engine.trace.recorder import Recorder
from sim.invariants import check_trace
from sim.replay import replay
from tests.core.driver import core_of, header, make_core, request, run_step

ADAPTER = LoRARequest(lora_name="poet", lora_path="adapters/poet")
MOVED = LoRARequest(lora_name="poet", lora_path="adapters/another-poet")


def image(mm_hash: str, offset: int, length: int = 6) -> MultiModalFeature:
    return MultiModalFeature(mm_hash=mm_hash, offset=offset, length=length)


def test_keys_are_tagged_and_in_order() -> None:
    images = (image("cat", 1, 2), image("dog", 3))
    assert extra_keys_of_block(0, 4, "salt", ADAPTER, images) == (
        ("lora", "poet", "adapters/poet"),
        ("mm", "cat", 1),
        ("mm", "dog", 3),
        ("cache_salt", "salt"),
    )


def test_an_item_enters_the_blocks_that_hold_its_placeholders() -> None:
    images = (image("cat", 6), image("dog", 13, 1))
    keys = [extra_keys_of_block(start, start + 4, None, None, images) for start in range(0, 20, 4)]
    assert keys == [None, (("mm", "cat", 2),), (("mm", "cat", -2),), (("mm", "dog", 1),), None]


def test_a_salt_enters_the_first_block_only() -> None:
    assert [extra_keys_of_block(start, start + 4, "a", None, ()) for start in (0, 4)] == [(("cache_salt", "a"),), None]


@pytest.mark.parametrize("algo", ["sha256", "builtin"])
def test_what_differs_in_a_key_shares_no_hash_from_there_on(algo: Any) -> None:
    none_hash, tokens = bytes.fromhex(none_hash_for(algo)), list(range(16))
    variants: list[dict[str, Any]] = [
        {},
        {"cache_salt": "poet"},
        {"lora": ADAPTER},
        {"lora": MOVED},
        {"mm_features": (image("cat", 1),)},
        {"mm_features": (image("cat", 2),)},
        {"mm_features": (image("dog", 1),)},
    ]
    chains = [hash_request_tokens(algo, none_hash, 4, tokens, **variant) for variant in variants]
    assert len({block_hash for chain in chains for block_hash in chain}) == 4 * len(variants)
    late = hash_request_tokens(algo, none_hash, 4, tokens, mm_features=[image("cat", 9, 1)])
    assert [mine == plain for mine, plain in zip(late, chains[0], strict=True)] == [True, True, False, False]


@pytest.mark.parametrize(
    ("first", "second", "num_hit_tokens"),
    [
        ({"lora": ADAPTER}, {"lora": ADAPTER}, 8),
        ({"lora": ADAPTER}, {"lora": MOVED}, 0),
        ({"lora": ADAPTER}, {}, 0),
        ({"salt": "a"}, {"salt": "a"}, 8),
        ({"salt": "a"}, {"salt": "b"}, 0),
        ({"mm_features": (image("cat", 5),)}, {"mm_features": (image("cat", 5),)}, 8),
        ({"mm_features": (image("cat", 5),)}, {"mm_features": (image("dog", 5),)}, 4),
    ],
)
def test_only_what_agrees_is_shared(first: dict[str, Any], second: dict[str, Any], num_hit_tokens: int) -> None:
    core = make_core()
    for name, extra in (("first", first), ("second", second)):
        core.add(request(name, [*range(10, 20)], max_tokens=1, **extra))
        (row,) = run_step(core).rows
    assert row.num_computed_tokens == num_hit_tokens


def test_extra_keys_are_recorded_and_replayed(tmp_path: Path) -> None:
    recorder = Recorder.to_file(tmp_path / "trace.jsonl", header())
    core = core_of(header(), recorder)
    for name in ("a", "b"):
        core.add(request(name, [*range(10, 20)], lora=ADAPTER, mm_features=(image("cat", 5),), max_tokens=4))
        run_step(core)
    while core.has_unfinished_requests():
        run_step(core)
    recorder.close()
    trace = read_trace(tmp_path / "trace.jsonl")
    assert check_trace(trace) == []
    assert replay(trace).num_divergences == 0
