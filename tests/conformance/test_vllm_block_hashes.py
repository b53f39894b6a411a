"""Block hashes have the same bytes as vLLM 0.32.0's `sha256_cbor`, extra keys included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.core.kv_cache.block_hash import hash_block, hash_request_tokens
from engine.inputs import LoRARequest

VECTORS = Path(__file__).parent / "vectors"
FILES = {
    name: msgspec.json.decode((VECTORS / name).read_bytes())
    for name in ("vllm_block_hashes.json", "vllm_block_hashes_seed0.json")
}
CASES = [(file["none_hash"], case) for file in FILES.values() for case in file["cases"]]


@pytest.mark.parametrize(("none_hash", "case"), CASES)
def test_hashes_equal_vllms(none_hash: str, case: dict[str, Any]) -> None:
    size, parent = case["block_size"], bytes.fromhex(none_hash)
    for index, block in enumerate(case["blocks"]):
        keys = block["extra_keys"]
        tokens = case["token_ids"][index * size : (index + 1) * size]
        block_hash = hash_block("sha256", parent, tokens, tuple(map(tuple, keys)) if keys else None)
        assert str(block_hash) == block["hash"]
        assert int.from_bytes(block_hash.value, "big") & (2**64 - 1) == block["event_hash"]
        parent = block_hash.value


@pytest.mark.parametrize(("none_hash", "case"), CASES)
def test_a_request_is_hashed_like_vllms(none_hash: str, case: dict[str, Any]) -> None:
    name = case["lora_name"]
    hashes = hash_request_tokens(
        "sha256",
        bytes.fromhex(none_hash),
        case["block_size"],
        case["token_ids"],
        case["cache_salt"],
        lora=None if name is None else LoRARequest(lora_name=name, lora_path=f"adapters/{name}"),
    )
    assert [str(block_hash) for block_hash in hashes] == [block["hash"] for block in case["blocks"]]
