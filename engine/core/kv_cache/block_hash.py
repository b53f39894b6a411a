"""The hash chain: a full block is named by everything that stands before and in it.

::

    none_hash ─► hash(none_hash, tokens 0–15, extra) ─► hash(that, tokens 16–31, extra) ─► …

Two requests that begin with the same tokens therefore meet in the same hashes for as long as they agree. Two
algorithms: `sha256` over canonical CBOR gives the same bytes as vLLM's `sha256_cbor`; `builtin` is Python's hash of
integers, faster and weaker, which is why a hit compares the token ids too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import cbor2

from engine.config import HashAlgo
from engine.core.kv_cache.extra_keys import ExtraKeys, extra_keys_of_block
from engine.inputs import LoRARequest, MultiModalFeature

_HashFunction = Callable[[bytes, tuple[int, ...], ExtraKeys], bytes]


class BlockHash(NamedTuple):
    """Name of a full block. As a dictionary key it compares its token ids as well as its hash."""

    value: bytes
    token_ids: tuple[int, ...]

    def __str__(self) -> str:
        return self.value.hex()


def hash_block(algo: HashAlgo, parent: bytes, token_ids: Sequence[int], extra_keys: ExtraKeys = None) -> BlockHash:
    """Hash one full block.

    Args:
        algo: `sha256` or `builtin`.
        parent: hash value of the block before it, or the none hash.
        token_ids: the block's tokens, exactly `block_size` of them.
        extra_keys: what else must agree for the KV to be the same.
    """
    tokens = tuple(token_ids)
    return BlockHash(_HASH_FUNCTIONS[algo](parent, tokens, extra_keys), tokens)


def hash_request_tokens(
    algo: HashAlgo,
    none_hash: bytes,
    block_size: int,
    token_ids: Sequence[int],
    cache_salt: str | None = None,
    known: Sequence[BlockHash] = (),
    lora: LoRARequest | None = None,
    mm_features: Sequence[MultiModalFeature] = (),
) -> list[BlockHash]:
    """Hash the full blocks of `token_ids` that follow the ones already `known`; an incomplete block has no hash.

    Args:
        algo: `sha256` or `builtin`.
        none_hash: the hash before the first block.
        block_size: tokens of a block.
        token_ids: all tokens of the request.
        cache_salt: enters the first hash.
        known: hashes of its first blocks.
        lora: enters every hash.
        mm_features: each enters the hashes of the blocks that hold its placeholders.
    """
    hashes: list[BlockHash] = []
    parent = known[-1].value if known else none_hash
    for start in range(len(known) * block_size, len(token_ids) - block_size + 1, block_size):
        end = start + block_size
        extra_keys = extra_keys_of_block(start, end, cache_salt, lora, mm_features)
        block_hash = hash_block(algo, parent, token_ids[start:end], extra_keys)
        hashes.append(block_hash)
        parent = block_hash.value
    return hashes


def none_hash_for(algo: HashAlgo) -> str:
    """Hex of the hash that stands before every first block; the same in every process.

    For `sha256` it is vLLM's value under PYTHONHASHSEED=0, so that block hashes can be compared with its KV events.
    """
    seed = cbor2.dumps("0", canonical=True)
    return hashlib.sha256(seed).digest()[: _DIGEST_BYTES[algo]].hex()


def _sha256(parent: bytes, token_ids: tuple[int, ...], extra_keys: ExtraKeys) -> bytes:
    return hashlib.sha256(cbor2.dumps((parent, token_ids, extra_keys), canonical=True)).digest()


def _builtin(parent: bytes, token_ids: tuple[int, ...], extra_keys: ExtraKeys) -> bytes:
    # Python's hash of a string differs between processes, that of integers does not: strings are digested first.
    extra = int.from_bytes(hashlib.sha256(repr(extra_keys).encode()).digest()[:8], "big") if extra_keys else 0
    value = hash((int.from_bytes(parent, "big"), extra, token_ids))
    return value.to_bytes(8, "big", signed=True)


_HASH_FUNCTIONS: dict[HashAlgo, _HashFunction] = {"sha256": _sha256, "builtin": _builtin}
_DIGEST_BYTES: dict[HashAlgo, int] = {"sha256": 32, "builtin": 8}
