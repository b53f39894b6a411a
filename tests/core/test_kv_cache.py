"""The KV cache: the free queue, the hash chain, prefix hits, sharing, eviction."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.engine_core import EngineCore
from engine.core.kv_cache.block import FreeBlockQueue, KVCacheBlock
from engine.core.kv_cache.block_hash import BlockHash, hash_request_tokens, none_hash_for
from engine.core.kv_cache.block_pool import BlockPool
from tests.core.driver import make_core, request, run_step

NONE = bytes.fromhex(none_hash_for("sha256"))


def ids(queue: FreeBlockQueue) -> list[int]:
    return [block.block_id for block in queue]


@given(st.lists(st.tuples(st.sampled_from(["pop", "append", "remove"]), st.integers(0, 7)), max_size=60))
def test_free_block_queue_behaves_like_a_list(operations: list[tuple[str, int]]) -> None:
    blocks = [KVCacheBlock(index) for index in range(8)]
    queue, model = FreeBlockQueue(blocks), list(range(8))
    for operation, block_id in operations:
        if operation == "pop" and block_id <= len(model):
            assert [block.block_id for block in queue.popleft(block_id)] == model[:block_id]
            del model[:block_id]
        elif operation == "append" and block_id not in model:
            queue.append(blocks[block_id])
            model.append(block_id)
        elif operation == "remove" and block_id in model:
            queue.remove(blocks[block_id])
            model.remove(block_id)
        assert ids(queue) == model
        assert len(queue) == len(model)


def test_free_block_queue_refuses_what_is_not_there() -> None:
    block = KVCacheBlock(1)
    queue = FreeBlockQueue([block])
    queue.remove(block)
    with pytest.raises(ValueError, match="block 1 is not in free_block_queue"):
        queue.remove(block)
    with pytest.raises(IndexError):
        queue.popleft(1)


@given(st.lists(st.integers(0, 5), max_size=40), st.lists(st.integers(0, 5), max_size=40), st.integers(1, 8))
def test_hashes_agree_exactly_as_far_as_the_tokens_do(one: list[int], other: list[int], block_size: int) -> None:
    first = hash_request_tokens("sha256", NONE, block_size, one)
    second = hash_request_tokens("sha256", NONE, block_size, other)
    assert len(first) == len(one) // block_size
    for index in range(min(len(first), len(second))):
        end = (index + 1) * block_size
        assert (first[index] == second[index]) == (one[:end] == other[:end])


def test_a_hash_is_extended_not_recomputed() -> None:
    tokens = list(range(40))
    whole = hash_request_tokens("sha256", NONE, 4, tokens)
    assert hash_request_tokens("sha256", NONE, 4, tokens, None, whole[:3]) == whole[3:]


def test_a_salt_separates_every_block() -> None:
    plain = hash_request_tokens("sha256", NONE, 4, list(range(16)))
    salted = hash_request_tokens("sha256", NONE, 4, list(range(16)), "tenant-a")
    assert not set(plain) & set(salted)


@pytest.mark.parametrize("salt", [None, "tenant-a"])
def test_builtin_hashes_are_the_same_in_every_process(salt: str | None) -> None:
    code = (
        "from engine.core.kv_cache.block_hash import *;"
        f"print(*hash_request_tokens('builtin', bytes.fromhex(none_hash_for('builtin')), 4, list(range(12)), {salt!r}))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(outputs) == 1


def test_a_builtin_hit_compares_the_token_ids() -> None:
    pool = BlockPool(4)
    block = pool.get_new_blocks(1)[0]
    pool.cache_full_blocks(block, [BlockHash(b"collision", (1, 2))])
    assert pool.get_cached_block(BlockHash(b"collision", (1, 2))) is block[0]
    assert pool.get_cached_block(BlockHash(b"collision", (3, 4))) is None


def test_a_block_is_evicted_only_when_it_is_handed_out() -> None:
    pool = BlockPool(4)
    name = BlockHash(b"a", (1,))
    blocks, _ = pool.get_new_blocks(3)
    pool.cache_full_blocks(blocks[:1], [name])
    pool.free_blocks(blocks[::-1])
    assert ids(pool.free_block_queue) == [3, 2, 1]
    assert pool.get_cached_block(name) is blocks[0]
    assert pool.get_new_blocks(2)[1] == []
    assert pool.get_new_blocks(1)[1] == [(1, name)]
    assert pool.get_cached_block(name) is None


def test_equal_blocks_are_not_merged_and_the_older_one_is_found() -> None:
    pool = BlockPool(4)
    name = BlockHash(b"a", (1,))
    blocks, _ = pool.get_new_blocks(2)
    pool.cache_full_blocks(blocks, [name, name])
    assert pool.get_cached_block(name) is blocks[0]
    pool.uncache(blocks[0])
    assert pool.get_cached_block(name) is blocks[1]


def finish_all(core: EngineCore) -> None:
    while core.has_unfinished_requests():
        run_step(core)


def test_a_second_prompt_shares_whole_blocks_only() -> None:
    core = make_core()
    core.add(request("a", [*range(10, 20)], max_tokens=1))
    finish_all(core)
    core.add(request("b", [*range(10, 20), 77], max_tokens=1))
    (row,) = run_step(core).rows
    assert (row.num_computed_tokens, row.num_scheduled_tokens) == (8, 3)
    assert row.block_ids[0][:2] == [1, 2]


@pytest.mark.parametrize("length", [4, 8, 12])
def test_a_hit_never_covers_the_whole_prompt(length: int) -> None:
    core = make_core()
    prompt = [*range(10, 10 + length)]
    core.add(request("a", prompt, max_tokens=1))
    finish_all(core)
    core.add(request("b", prompt, max_tokens=1))
    (row,) = run_step(core).rows
    assert row.num_scheduled_tokens == 4
    core.add(request("c", [*prompt, 1, 2], max_tokens=1))
    (row,) = run_step(core).rows
    assert row.num_computed_tokens == length


def test_live_requests_share_blocks_and_count_references() -> None:
    core = make_core()
    core.add(request("a", [*range(10, 20)], max_tokens=5))
    run_step(core)
    core.add(request("b", [*range(10, 20)], max_tokens=5))
    run_step(core)
    pool = core.scheduler.kv_cache_manager.block_pool
    assert [pool.blocks[block_id].ref_count for block_id in (1, 2, 3)] == [2, 2, 1]
    core.abort(["a"])
    assert [pool.blocks[block_id].ref_count for block_id in (1, 2, 3)] == [1, 1, 0]
    core.abort(["b"])
    assert pool.num_blocks_in_use == 0


def test_a_block_filled_by_a_decode_can_be_shared() -> None:
    core = make_core()
    core.add(request("a", [10, 11], max_tokens=4))
    finish_all(core)
    core.add(request("b", [10, 11, 9, 9, 50], max_tokens=1))
    (row,) = run_step(core).rows
    assert row.num_computed_tokens == 4


def test_without_prefix_caching_nothing_is_found() -> None:
    core = make_core(enable_prefix_caching=False)
    for name in "ab":
        core.add(request(name, [*range(10, 20)], max_tokens=1))
        (row,) = run_step(core).rows
        assert row.num_computed_tokens == 0


def test_reset_is_refused_while_a_block_is_in_use() -> None:
    core = make_core()
    core.add(request("a", [*range(10, 20)], max_tokens=2))
    run_step(core)
    assert core.reset_prefix_cache() is False
    finish_all(core)
    assert core.reset_prefix_cache() is True
    core.add(request("b", [*range(10, 20)], max_tokens=1))
    (row,) = run_step(core).rows
    assert row.num_computed_tokens == 0
